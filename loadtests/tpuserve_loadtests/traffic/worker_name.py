"""What people call a worker of the load generator."""

import os
import socket


def worker_name(process: int | None = None) -> str:
    """The name of a process of this machine, of this one unless told."""
    return f"{socket.gethostname()} (process {process or os.getpid()})"
