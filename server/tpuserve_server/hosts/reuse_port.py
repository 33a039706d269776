"""Ports that servers share with SO_REUSEPORT (Linux), and the choice of the one that gets new connections.

The kernel gives each new connection to one listening socket of the group, by a hash of its addresses. It resets
connections in the queue of a socket that closes. A server must therefore get no new connections for a while before it
closes its port. The kernel selects the socket by a program instead, if a process of the group attaches one, which needs
no privileges: SO_ATTACH_REUSEPORT_CBPF in socket(7). Positions in the group follow the order of listen(2). When a
socket closes, the last one moves to its position. At a position without a socket, the kernel uses its default, a hash.
"""

import contextlib
import ctypes
import os
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

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
