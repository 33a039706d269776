"""One client connection and its connection to the upstream, as the relays use them."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from tests.clients.faults.fault import Injection

_DRIP_PAUSE_S: Final = 0.02

Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Cut(ConnectionError):
    """The fault ends both connections at once."""


@dataclass(eq=False, slots=True)
class Link:
    """A pair of connections. A dead link reads from both sides and writes to neither.

    `take` counts a request and returns its fault. A link belongs to the proxy's event loop.
    """

    client: Streams
    upstream: Streams
    take: Callable[[], Injection | None]
    is_dead: bool = False

    async def to_client(self, data: bytes) -> None:
        await self._write(self.client[1], data)

    async def to_upstream(self, data: bytes) -> None:
        await self._write(self.upstream[1], data)

    async def drip(self, data: bytes) -> None:
        """Send `data` to the client byte by byte, with pauses."""
        for byte in data:
            await self.to_client(bytes([byte]))
            await asyncio.sleep(_DRIP_PAUSE_S)

    def half_close(self) -> None:
        """Close the sending side to the client. The link is dead after that."""
        self.client[1].write_eof()
        self.is_dead = True

    async def discard(self) -> None:
        """Read from the client until it closes its connection."""
        with contextlib.suppress(OSError):
            while await self.client[0].read(2**16):
                pass

    def abort(self) -> None:
        """Close both connections at once."""
        for _, writer in (self.client, self.upstream):
            writer.transport.abort()

    async def close(self) -> None:
        """Close both connections after the bytes that are already written."""
        for _, writer in (self.client, self.upstream):
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if not self.is_dead:
            writer.write(data)
            await writer.drain()
