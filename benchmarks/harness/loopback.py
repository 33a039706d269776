"""A network namespace that has loopback and nothing else: what runs inside it reaches nobody, and nobody reaches it."""

import contextlib
import ctypes
import os
import socket
import subprocess

_CLONE_NEWNET = 0x40000000


def enter() -> str | None:
    """Move this process, and what it starts from now on, into a new one for good; the reason where that is impossible.

    To be called from the main thread before there is another: Linux moves the calling thread alone.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        return f"no network namespace of our own could be made ({os.strerror(ctypes.get_errno())}): run as root"
    with contextlib.suppress(OSError):
        done = subprocess.run(["ip", "link", "set", "lo", "up"], check=False, capture_output=True, text=True)
        if done.returncode == 0 and is_alone():
            return None
    return "loopback could not be brought up in the new network namespace: install ip (Debian: iproute2)"


def is_alone() -> bool:
    """Whether loopback is the only network device there is."""
    return [name for _, name in socket.if_nameindex()] == ["lo"]
