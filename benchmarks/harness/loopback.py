"""A network namespace with only a loopback device, without connections to or from outside."""

import contextlib
import ctypes
import os
import socket
import subprocess

_CLONE_NEWNET = 0x40000000


def enter() -> str | None:
    """Move this process and its future children permanently to a new namespace. Return None, or why this failed.

    Call this from the main thread before starting other threads: Linux moves only the calling thread.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        return f"the benchmark cannot create a network namespace ({os.strerror(ctypes.get_errno())}). Run it as root."
    with contextlib.suppress(OSError):
        done = subprocess.run(["ip", "link", "set", "lo", "up"], check=False, capture_output=True, text=True)
        if done.returncode == 0 and is_alone():
            return None
    return "the benchmark cannot start loopback in its network namespace. Install ip (Debian: iproute2)."


def is_alone() -> bool:
    """Return whether loopback is the only network device."""
    return [name for _, name in socket.if_nameindex()] == ["lo"]
