"""Predecessor: the server that a new one replaces, by its process."""

import os
import signal
from collections.abc import Iterator

from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.reuse_port import listening_inodes


class Predecessor:
    """A running server. A file descriptor refers to the process, so that a later process with its number is safe."""

    def __init__(self, pid: int, ports: set[int]) -> None:
        """Open the process. Raises HostError unless it, or its child process, listens on one of `ports`."""
        try:
            self._process = os.pidfd_open(pid)
        except OSError as error:
            raise _refused(pid, f"the process cannot be found ({error.strerror})") from None
        wanted = {f"socket:[{inode}]" for port in ports for inode in listening_inodes(port)}
        try:
            held = {name for each in (pid, *_children(pid)) for name in _descriptors(each)}
        except OSError as error:
            raise _refused(pid, f"the process cannot be examined ({error.strerror})") from None
        if not wanted & held:
            raise _refused(pid, "the process is not a server on the same ports")

    @classmethod
    def of(cls, options: HostOptions) -> "Predecessor | None":
        """Return the server that `options` name, or None. Raises HostError as the constructor does."""
        if options.replace_pid is None:
            return None
        return cls(options.replace_pid, {port for port in (options.grpc_port, options.rest_port) if port})

    def stop(self) -> None:
        """Let the server drain and end, if it still runs."""
        try:
            signal.pidfd_send_signal(self._process, signal.SIGTERM)
        except ProcessLookupError:
            return


def _refused(pid: int, why: str) -> HostError:
    return HostError(
        f"Cannot replace process {pid}: {why}. Set --replace_pid to the process id of the running server, or omit it."
    )


def _children(pid: int) -> Iterator[int]:
    """Yield the child processes. A supervisor does not listen itself."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as children:
            yield from map(int, children.read().split())


def _descriptors(pid: int) -> Iterator[str]:
    """Yield what the descriptors of a process refer to, such as `socket:[123]`."""
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        try:
            yield os.readlink(f"/proc/{pid}/fd/{descriptor}")
        except FileNotFoundError:  # Closed meanwhile.
            continue
