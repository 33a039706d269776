"""Command of a local worker process: `python -m tpuserve_loadtests.traffic.worker_process HOST PORT`."""

import os
import signal
import sys


def main() -> None:
    """Run the coordinator's loads until it sends quit or disappears."""
    from tpuserve_loadtests.traffic.gevent_setup import give_process_to_gevent

    give_process_to_gevent()
    from tpuserve_loadtests.traffic.worker import Worker

    host, port = sys.argv[1:]
    _end_with_coordinator()
    Worker(host, int(port)).serve()


def _end_with_coordinator() -> None:
    import gevent
    from gevent.os import tp_read

    def watch() -> None:
        while tp_read(sys.stdin.fileno(), 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    gevent.spawn(watch)


if __name__ == "__main__":
    main()
