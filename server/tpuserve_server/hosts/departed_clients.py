"""DepartedClients: notices clients of HTTP/1.1 that leave while their request runs. One event loop's thread owns it.

The HTTP server reads nothing from such a connection between a request and its response, so its `receive()` never
reports the disconnect. The kernel's table of connections does (Linux). A client that has closed its sending side counts
as gone, because the kernel does not show whether it still reads.
"""

import asyncio
import ipaddress
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tpuserve_server.hosts.disconnects import DISCONNECT

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope

# Time between looks at the table while a request waits.
_INTERVAL_S: Final = 0.2
_TABLES: Final = tuple(path for path in map(Path, ("/proc/self/net/tcp", "/proc/self/net/tcp6")) if path.exists())
_ESTABLISHED: Final = "01"  # TCP_ESTABLISHED in net/tcp_states.h.

# Port of the server, and address of the client, both in the table's form.
Connection = tuple[str, str]


class DepartedClients:
    """Looks at the kernel's table while a request waits for its client to leave."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], frozenset[Connection]] = {}
        self._looking: asyncio.Task[None] | None = None

    def receive(self, scope: "Scope", receive: "Receive") -> "Receive":
        """Return a `receive` that conforms to ASGI for a request over HTTP/1.1."""
        ended = False

        async def receive_on() -> "Message":
            nonlocal ended
            if not ended:
                message = await receive()
                ended = not message.get("more_body", False)
                return message
            await self._departure(scope)
            return {"type": DISCONNECT}

        return receive_on

    async def _departure(self, scope: "Scope") -> None:
        departure = asyncio.get_running_loop().create_future()
        self._waiting[departure] = _connections(scope)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        try:
            await departure
        finally:
            del self._waiting[departure]

    async def _look(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(_INTERVAL_S)
                # Requests that begin to wait meanwhile may have come after the look.
                waiting = list(self._waiting.items())
                found = await asyncio.to_thread(_established)
                for departure, connections in waiting:
                    if connections and not connections & found and not departure.done():
                        departure.set_result(None)
        finally:
            self._looking = None


def _established() -> set[Connection]:
    """Return the established connections of this network namespace. Takes 3 ms for 1,000."""
    found: set[Connection] = set()
    for table in _TABLES:
        with table.open(encoding="ascii") as lines:
            next(lines)
            for line in lines:
                _, local, remote, state, _ = line.split(maxsplit=4)
                if state == _ESTABLISHED:
                    found.add((local[-4:], remote))
    return found


def _connections(scope: "Scope") -> frozenset[Connection]:
    """Return the forms in which the table may show a connection. None for a UNIX socket, or without a table."""
    client, server = scope.get("client"), scope.get("server")
    if client is None or server is None or not _TABLES:
        return frozenset()
    address = ipaddress.ip_address(client[0].partition("%")[0])
    packed = [address.packed]
    if isinstance(address, ipaddress.IPv4Address):
        packed.append(ipaddress.IPv6Address(f"::ffff:{address}").packed)
    elif address.ipv4_mapped is not None:
        packed.append(address.ipv4_mapped.packed)
    return frozenset((f"{server[1]:04X}", f"{_words(each)}:{client[1]:04X}") for each in packed)


def _words(packed: bytes) -> str:
    """Return an address as the table has it: 32-bit words in the order of this machine's bytes."""
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
