"""Setup of gevent for this process. It is a separate module because it must run before all other imports."""

import os


def give_process_to_gevent(*, forks_use_grpc: bool = True) -> None:
    """Make sockets, threads and gRPC cooperative. Call it before any socket or channel opens. It cannot be undone.

    The process must not run a gRPC server afterwards, because its threads are greenlets. Without `forks_use_grpc`, its
    children only execute other programs. gRPC then has no fork handlers, which abort some of these children.
    """
    from gevent import get_hub, monkey

    monkey.patch_all()
    # Before any load, Ctrl-C ends the program as usual, but gevent would print the exception first.
    get_hub().NOT_ERROR += (KeyboardInterrupt,)
    # Calls report errors. Otherwise, gRPC would also log lines for each attempt.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if not forks_use_grpc:
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    # gRPC creates locks during its import, so import it only now.
    from grpc.experimental import gevent as grpc_gevent

    grpc_gevent.init_gevent()
