"""Handover of new connections from a server to its successor on the same addresses, before it closes them.

Servers share a port with SO_REUSEPORT (Linux). The kernel gives each new connection to one listening socket of the
group, by a hash of its addresses. It resets connections in the queue of a socket that closes. A server must therefore
get no new connections for a while before it closes its port. The kernel selects the socket by a program instead, if a
process of the group attaches one, which needs no privileges: SO_ATTACH_REUSEPORT_CBPF in socket(7). Positions in the
group follow the order of listen(2). When a socket closes, the last one moves to its position. At a position without a
socket, the kernel uses its default, a hash.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tpuserve_server.hosts.application import HostError, HostOptions, Listening

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

    def _join(self, address: str | None) -> "SharedPort | None":
        if address is None:
            return None
        try:
            return SharedPort.join(int(address.rpartition(":")[2]), takes_all=self._replaces)
        except OSError as error:
            _log.warning("Cannot direct new connections to %s to this server (%s)", address, error)
            return None


def _leave(port: "SharedPort") -> int:
    try:
        return port.leave()
    except OSError as error:
        _log.warning("Cannot direct new connections to the other server (%s)", error)
        return 1


# A server can replace another one while at most two share a port, because positions are known only then.
MAX_SERVERS: Final = 2

# asm-generic/socket.h; the socket module has no names for them.
_SO_ATTACH_REUSEPORT_CBPF: Final = 51
_SO_DETACH_REUSEPORT_BPF: Final = 68
_BPF_RETURN: Final = 0x06  # BPF_RET | BPF_K in linux/bpf_common.h.
_LISTENING: Final = "0A"  # TCP_LISTEN in net/tcp_states.h.
_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")


@dataclass(frozen=True, slots=True)
class SharedPort:
    """A port that this process listens on, perhaps together with another server. Methods raise OSError."""

    # The listening socket. Its owner may close one descriptor of it and keep another.
    inode: int
    # Inode of the socket of the server that came first. It has the position before ours as long as it exists.
    elder: int | None

    @classmethod
    def join(cls, port: int, *, takes_all: bool) -> "SharedPort":
        """Let this process, which already listens on `port`, take all new connections, or its share of them."""
        joined = cls(_find_listening(port), None)
        others = joined._others()
        if not others:
            return joined
        if takes_all:
            joined._direct(len(others))
        else:
            joined._distribute()
        return cls(joined.inode, others[0])

    def leave(self) -> int:
        """Direct new connections to the other server, if there is one. Return the number of other servers."""
        others = self._others()
        if len(others) == 1:
            self._direct(0 if self.elder in others else 1)
        return len(others)

    def has_queue(self) -> bool:
        """Return whether a connection waits until this process accepts it."""
        return any(listener.inode == self.inode and listener.queue > 0 for listener in _listeners())

    def _others(self) -> list[int]:
        """Return the inodes of other sockets that listen on the same address."""
        listeners = list(_listeners())
        group = next((listener.group for listener in listeners if listener.inode == self.inode), None)
        if group is None:
            raise OSError(f"the kernel's table of sockets does not contain inode {self.inode}")
        return [each.inode for each in listeners if each.group == group and each.inode != self.inode]

    def _direct(self, position: int) -> None:
        """Make the kernel give all new connections of the group to the socket at `position`."""
        with self._member() as member:
            attach_program(member, _SO_ATTACH_REUSEPORT_CBPF, position)

    def _distribute(self) -> None:
        """Make the kernel distribute new connections again, if a server that has left directed them."""
        with self._member() as member, contextlib.suppress(FileNotFoundError):
            member.setsockopt(socket.SOL_SOCKET, _SO_DETACH_REUSEPORT_BPF, 0)

    def _member(self) -> socket.socket:
        """Return a duplicate of our socket, because closing it must not close the descriptor of its owner."""
        return socket.socket(fileno=os.dup(_find_descriptor(self.inode)))


def attach_program(member: socket.socket, option: int, result: int) -> None:
    """Attach a program of one instruction, which returns `result`, by an option of the socket. Raises OSError."""
    instruction = ctypes.create_string_buffer(struct.pack("HBBI", _BPF_RETURN, 0, 0, result))  # sock_filter
    program = struct.pack("HP", 1, ctypes.addressof(instruction))  # sock_fprog
    member.setsockopt(socket.SOL_SOCKET, option, program)


def is_shared(port: int) -> bool:
    """Return whether two servers already share `port`, on any address."""
    groups = Counter(listener.group for listener in _listeners() if listener.port == port)
    return any(count >= MAX_SERVERS for count in groups.values())


def listening_inodes(port: int) -> list[int]:
    """Return the inodes of all sockets that listen on `port`, on any address."""
    return [listener.inode for listener in _listeners() if listener.port == port]


@dataclass(frozen=True, slots=True)
class _Listener:
    """A listening TCP socket of any process."""

    # The table, and the local address in the table's form. Only sockets of the same group can share a port.
    group: tuple[str, str]
    queue: int
    inode: int

    @property
    def port(self) -> int:
        return int(self.group[1].rpartition(":")[2], 16)


def _listeners() -> Iterator[_Listener]:
    for table in _TABLES:
        with open(table, encoding="ascii") as lines:
            next(lines)
            for line in lines:
                _, local, _, state, queues, _, _, _, _, inode, *_ = line.split()
                if state != _LISTENING:
                    break  # Listening sockets come first (tcp_seek_last_pos in net/ipv4/tcp_ipv4.c).
                yield _Listener((table, local), int(queues.rpartition(":")[2], 16), int(inode))


def _find_listening(port: int) -> int:
    """Return the inode of this process's socket that listens on `port`."""
    own = _own_sockets()
    for inode in listening_inodes(port):
        if inode in own:
            return inode
    raise OSError(f"no socket of this process listens on port {port}")


def _find_descriptor(inode: int) -> int:
    """Return a descriptor of this process's socket with this inode."""
    try:
        return _own_sockets()[inode]
    except KeyError:
        raise OSError(f"this process has closed the socket with inode {inode}") from None


def _own_sockets() -> dict[int, int]:
    """Return a descriptor of each socket of this process, by inode."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # Closed meanwhile.
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:["):
                found[int(target[8:-1])] = int(name)
    return found


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
