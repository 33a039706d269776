"""Discards the rest of a request's body after its response, within limits.

Many clients, such as Python's http.client, send the whole body before they read. If the server closes the connection
earlier, such a client loses the response, because data for a closed socket resets the connection (RFC 9112, 9.6).
"""

import asyncio
import contextlib
from typing import TYPE_CHECKING

from tpuserve_server.hosts.disconnects import Caller

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope

# Beyond any of these limits the server closes the connection: the client does not read, or sends without end.
MAX_BYTES = 1 << 30
TIMEOUT_S = 10.0
SILENCE_S = 2.0

# The server reads announced bodies up to this size to their end, so that the connection can be reused.
_SMALL_BYTES = 1 << 16
_BODILESS = ("GET", "HEAD", "OPTIONS")


class BodyReceive:
    """ASGI's `receive` with the read position of its reader."""

    __slots__ = ("ended", "server")

    def __init__(self, server: "Receive") -> None:
        """Read from the server's own `receive`."""
        self.server = server
        # Whether the reader has the end of the body.
        self.ended = False

    async def __call__(self) -> "Message":
        """Receive the next message."""
        message = await self.server()
        self.ended = not message.get("more_body", False)
        return message


def has_body(scope: "Scope") -> bool:
    """Return whether the request announces a body."""
    return _announced_bytes(scope) != 0


def is_small(scope: "Scope") -> bool:
    """Return whether the announced body is small enough to read it and keep the connection."""
    return 0 <= _announced_bytes(scope) <= _SMALL_BYTES


async def discard(receive: BodyReceive) -> None:
    """Read the rest of the body until its end, a disconnect, or one of the limits above."""
    caller = Caller(receive.server, lambda: None)
    left_bytes = MAX_BYTES
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT_S):
                while left_bytes > 0:
                    async with asyncio.timeout(SILENCE_S):
                        message = await caller.receive()
                    if not message.get("more_body", False):
                        return
                    left_bytes -= len(message.get("body", b""))
    finally:
        caller.close()


def _announced_bytes(scope: "Scope") -> int:
    """Return the announced size of the body, or -1 if it is unknown. HTTP/2 does not announce that a body follows."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() and len(value) < 20 else -1
        if name == b"transfer-encoding":
            return -1
    return 0 if scope["method"] in _BODILESS else -1
