"""What the started process runs: `tpuserve serve`, which drains and ends when the process that started it is gone."""

import logging
import os
import signal
import sys
import threading

from tpuserve_server.__main__ import serve

_log = logging.getLogger(__name__)


def main() -> None:
    """Entry point of the started process. Standard input is a pipe that only the owner holds open."""
    # Ends with the process: nothing else interrupts a read.
    threading.Thread(target=_end_with_owner, name="owner", daemon=True).start()
    serve(prog_name="tpuserve serve")


def _end_with_owner() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    _log.warning("The process that started this server is gone: draining")
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
