"""Hands this process to gevent. Kept apart from everything else because it must happen before everything else."""

import os


def give_process_to_gevent() -> None:
    """Make sockets, threads and gRPC cooperative. Call it before anything opens a socket or a channel; never undone.

    A process that went through this must not run a gRPC server: its threads are greenlets now.
    """
    from gevent import get_hub, monkey

    monkey.patch_all()
    # Ctrl-C before there is a load ends the program, as anywhere; gevent would print the exception first.
    get_hub().NOT_ERROR += (KeyboardInterrupt,)
    # What goes wrong is told as errors of calls; gRPC would write lines of its own beside, of each try.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Only now: gRPC makes locks while it is being imported.
    from grpc.experimental import gevent as grpc_gevent

    grpc_gevent.init_gevent()
