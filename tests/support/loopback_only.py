"""`python -m tests.support.loopback_only COMMAND…`: runs a command in a network namespace with the loopback alone.

Ray listens on every interface. In the namespace, no other machine reaches its ports, and they conflict with none.
"""

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

# sched.h, and linux/sockios.h with the flags of linux/if.h.
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40


def enter() -> None:
    """Move this process into a new network namespace, and bring its loopback interface up. Linux only.

    Raises:
        OSError: the process may not create namespaces.
    """
    uid, gid = os.getuid(), os.getgid()
    _unshare(_CLONE_NEWNET if uid == 0 else _CLONE_NEWUSER | _CLONE_NEWNET)
    if uid != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP | _IFF_RUNNING))


def obstacle() -> str:
    """Return why this machine cannot create such a namespace, or "" if it can."""
    done = subprocess.run([*COMMAND, "true"], capture_output=True, text=True, check=False)
    return (done.stderr.splitlines() or ["unknown"])[-1] if done.returncode else ""


def _unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


# The command that runs the command after it in the namespace.
COMMAND = (sys.executable, "-m", "tests.support.loopback_only")

if __name__ == "__main__":
    enter()
    os.execvp(sys.argv[1], sys.argv[1:])
