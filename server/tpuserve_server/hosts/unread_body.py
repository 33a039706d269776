"""What is left of a request's body when its answer is there: read and thrown away, within bounds.

Many clients (Python's http.client among them) write all of a body before they read anything. A connection that is
closed on them loses the answer: what arrives at a closed socket resets it (RFC 9112, 9.6).
"""

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol

from tpuserve_server.hosts.disconnects import Caller

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope

# Beyond any of these the client is cut off: it does not listen, or sends without end.
MAX_BYTES = 1 << 30
TIMEOUT_S = 10.0
SILENCE_S = 2.0

# Up to here a body is read to its end for certain: the connection can be used again.
_SMALL_BYTES = 1 << 16
_BODILESS = ("GET", "HEAD", "OPTIONS")


class BodyReceive(Protocol):
    """ASGI's `receive`, which knows how far its reader is."""

    ended: bool
    # The server's own.
    server: "Receive"

    async def __call__(self) -> "Message":
        """The next message."""
        ...


def has_body(scope: "Scope") -> bool:
    """Whether the request announces one."""
    return _announced_bytes(scope) != 0


def is_small(scope: "Scope") -> bool:
    """Whether the body that the request announces is worth reading for the connection's sake."""
    return 0 <= _announced_bytes(scope) <= _SMALL_BYTES


async def discard(receive: BodyReceive) -> None:
    """Read to the body's end, or until the client leaves; no longer, no more and with no longer silence than above."""
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
    """-1 for an unknown number. Envoy does not pass on that a body is chunked."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() and len(value) < 20 else -1
        if name == b"transfer-encoding":
            return -1
    return 0 if scope["method"] in _BODILESS else -1
