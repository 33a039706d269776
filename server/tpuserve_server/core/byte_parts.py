"""ByteParts: bytes that arrive in chunks, joined without blocking the event loop."""

import asyncio
from typing import Final

# Smaller chunks are first joined to parts of this size: a list of tiny chunks would take many times the memory of their
# bytes.
PART_BYTES: Final = 1 << 20
# The copy of more bytes takes more than a few milliseconds.
_INLINE_BYTES: Final = 1 << 22


class ByteParts:
    """The chunks of one message or body."""

    __slots__ = ("_parts", "_tail", "size_bytes")

    def __init__(self) -> None:
        """Begin without bytes."""
        self._parts: list[bytes] = []
        self._tail = bytearray()
        self.size_bytes = 0

    def add(self, chunk: bytes | bytearray | memoryview) -> None:
        """Add a chunk. Copies its bytes."""
        self.size_bytes += len(chunk)
        self._tail += chunk
        if len(self._tail) >= PART_BYTES:
            self._parts.append(bytes(self._tail))
            self._tail.clear()

    async def join(self) -> bytes:
        """Return all bytes. Many bytes are copied by a thread, without the GIL."""
        parts = [*self._parts, bytes(self._tail)]
        if self.size_bytes <= _INLINE_BYTES:
            return b"".join(parts)
        return await asyncio.to_thread(b"".join, parts)

    def clear(self) -> None:
        """Drop all bytes, because a traceback may refer to this object for long."""
        self._parts.clear()
        self._tail.clear()
        self.size_bytes = 0
