"""DepartedClients: notices clients of HTTP/1.1 that leave while their request runs. One event loop's thread owns it.

The HTTP server reads nothing from such a connection between a request and its response, so its `receive()` never
reports the disconnect. On Linux the kernel does, in 5 us for each connection, however many exist (sock_diag(7)). A
client that has closed its sending side counts as gone, because the kernel does not show whether it still reads.
"""

import asyncio
import contextlib
import itertools
import socket
import struct
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope

# The kernel is asked about each waiting client once in this time, and about as many at a time as its replies have room.
_INTERVAL_S: Final = 0.2
_MOST_QUERIES: Final = 64
# With many waiting clients the interval grows, so that the queries take at most 7 % of the event loop's time.
_LEAST_PAUSE_S: Final = 0.005

# linux/sock_diag.h, linux/inet_diag.h and net/tcp_states.h
_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_ESTABLISHED: Final = 1
_HEADER: Final = struct.Struct("=IHHII")
_ANY_COOKIE: Final = 0xFFFFFFFF


class DepartedClients:
    """Asks the kernel about connections while their requests wait for their clients to leave."""

    def __init__(self) -> None:
        # In the order of the next queries.
        self._waiting: dict[asyncio.Future[None], bytes] = {}
        self._timer: asyncio.TimerHandle | None = None

    def receive(self, scope: "Scope", receive: "Receive") -> "Receive":
        """Return a `receive` that conforms to ASGI for a request over HTTP/1.1."""
        ended = False

        async def receive_on() -> "Message":
            nonlocal ended
            if not ended:
                message = await receive()
                ended = not message.get("more_body", False)
                return message
            return await self.departure(scope)

        return receive_on

    async def departure(self, scope: "Scope") -> "Message":
        """Wait until the client has left, or for ever if the kernel does not show it. Return ASGI's message."""
        loop = asyncio.get_running_loop()
        departure: asyncio.Future[None] = loop.create_future()
        if (query := _query(scope)) is not None:
            self._waiting[departure] = query
            if self._timer is None:
                self._timer = loop.call_later(_INTERVAL_S, self._look, loop)
        try:
            await departure
        finally:
            self._waiting.pop(departure, None)
        return {"type": "http.disconnect"}

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        asked = dict(itertools.islice(self._waiting.items(), _MOST_QUERIES))
        gone = _find_gone(list(asked.values()))
        for number, (departure, query) in enumerate(asked.items()):
            del self._waiting[departure]
            if number not in gone:
                self._waiting[departure] = query
            elif not departure.done():
                departure.set_result(None)
        if self._waiting:
            pause_s = max(_INTERVAL_S * _MOST_QUERIES / max(len(self._waiting), _MOST_QUERIES), _LEAST_PAUSE_S)
            self._timer = loop.call_later(pause_s, self._look, loop)


def _query(scope: "Scope") -> bytes | None:
    """Return the `inet_diag_req_v2` of a connection. None for a UNIX socket, a link-local address and other systems.

    The kernel finds a link-local connection only by its interface, which the scope does not have.
    """
    client, server = scope.get("client"), scope.get("server")
    if sys.platform != "linux" or client is None or server is None or server[1] is None:
        return None
    family = socket.AF_INET6 if ":" in server[0] else socket.AF_INET
    ours, theirs = (socket.inet_pton(family, host.partition("%")[0]) for host, _ in (server, client))
    if theirs[0] == 0xFE and theirs[1] & 0xC0 == 0x80:
        return None
    return (
        struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF)
        + struct.pack(">HH16s16s", server[1], client[1], ours, theirs)
        + struct.pack("=III", 0, _ANY_COOKIE, _ANY_COOKIE)
    )


def _find_gone(queries: list[bytes]) -> set[int]:
    """Return the numbers of the queries whose client has left.

    For a connection that was reset, the kernel shows the listening socket. It shows nothing where it lacks the means:
    the client then counts as connected.
    """
    gone: set[int] = set()
    messages = (
        _HEADER.pack(_HEADER.size + len(query), _SOCK_DIAG_BY_FAMILY, 1, number, 0) + query
        for number, query in enumerate(queries)
    )
    # A sandbox may forbid these sockets.
    with contextlib.suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.send(b"".join(messages))
        for _ in queries:
            # The kernel has replied to all queries before `send` returns.
            reply = kernel.recv(1024, socket.MSG_DONTWAIT)
            _, kind, _, number, _ = _HEADER.unpack_from(reply)
            if kind == _SOCK_DIAG_BY_FAMILY and reply[_HEADER.size + 1] != _ESTABLISHED:
                gone.add(number)
    return gone
