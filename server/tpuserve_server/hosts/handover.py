"""Handover of new connections from a server to its successor on the same addresses, before it closes them."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from tpuserve_server.hosts.application import HostOptions, Listening
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.reuse_port import SharedPort, listening_inodes


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


_log = logging.getLogger(__name__)

# A client that has begun to connect to this server completes its connection within this time, even if one packet is
# lost: the first retransmission follows after one second (RFC 6298, section 2).
CONNECT_S = 2.0
# Maximum wait for a busy server to accept the connections in its queue.
QUEUE_TIMEOUT_S = 3.0
# Time for clients with kept connections to learn of the drain by a response, if a successor serves meanwhile.
FAREWELL_S = 5.0
_ASK_AGAIN_S = 0.02


@dataclass(frozen=True, slots=True)
class _SocketPath:
    path: str
    before: os.stat_result

    def is_replaced(self) -> bool:
        """Return whether another server has taken the path over."""
        try:
            return not os.path.samestat(self.before, os.stat(self.path))
        except FileNotFoundError:
            return False


class Handover:
    """The shared addresses of this server. One event loop's thread owns it."""

    def __init__(self, options: HostOptions) -> None:
        """Do nothing for ports unless `options` allow a second server on them."""
        self._shares_ports = options.reuse_port
        self._replaces = options.replace_pid is not None
        self._ports: list[SharedPort] = []
        self._path: _SocketPath | None = None

    def begin(self, listening: Listening) -> None:
        """Take the new connections of a server that this one replaces, or a share of those of other servers.

        Call it once the addresses are open.
        """
        if listening.grpc_socket is not None:
            path = listening.grpc_socket.removeprefix("unix:")
            with contextlib.suppress(FileNotFoundError):  # Another server has replaced it and removed its own.
                self._path = _SocketPath(path, os.stat(path))
        if self._shares_ports:
            self._ports = [
                port for address in (listening.grpc, listening.rest) if (port := self._join(address)) is not None
            ]

    async def end(self) -> bool:
        """Leave new connections to other servers, and wait until this one has accepted all of its own.

        Return False at once if there is no other server.
        """
        others = max((_leave(port) for port in self._ports), default=0)
        if not others and not (self._path is not None and self._path.is_replaced()):
            return False
        if others > 1:
            # The kernel still gives this server its share. Clients that it then ignores reach another one.
            return True
        await asyncio.sleep(CONNECT_S)
        try:
            async with asyncio.timeout(QUEUE_TIMEOUT_S):
                while any(map(SharedPort.has_queue, self._ports)):  # noqa: ASYNC110  # The kernel sends no events.
                    await asyncio.sleep(_ASK_AGAIN_S)
        except TimeoutError:
            _log.warning("Connections still wait to be accepted after %g s. They are lost", QUEUE_TIMEOUT_S)
        return True

    def _join(self, address: str | None) -> SharedPort | None:
        if address is None:
            return None
        try:
            return SharedPort.join(int(address.rpartition(":")[2]), takes_all=self._replaces)
        except OSError as error:
            _log.warning("Cannot direct new connections to %s to this server (%s)", address, error)
            return None


def _leave(port: SharedPort) -> int:
    try:
        return port.leave()
    except OSError as error:
        _log.warning("Cannot direct new connections to the other server (%s)", error)
        return 1
