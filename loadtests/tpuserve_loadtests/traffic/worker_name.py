"""Names of workers for messages."""

import os
import socket


def worker_name(process: int | None = None) -> str:
    """Return the name of a process on this machine, by default of this one."""
    return f"{socket.gethostname()} (process {process or os.getpid()})"
