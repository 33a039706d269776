"""Entry point of the child process: `tpuserve serve`, which drains and exits when its parent process ends."""

import logging
import os
import signal
import sys
import threading

from tpuserve_server.startup.command import serve

_log = logging.getLogger(__name__)


def main() -> None:
    """Run the server. Standard input is a pipe that only the owner holds open."""
    # A daemon thread, because only the end of the process interrupts its read.
    threading.Thread(target=_end_with_owner, name="owner", daemon=True).start()
    serve(prog_name="tpuserve serve")


def _end_with_owner() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    _log.warning("The process that started this server has ended. The server drains and stops")
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
