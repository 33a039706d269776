"""ByteParts: bytes that arrive in chunks, joined without blocking the event loop."""

import asyncio
from typing import Final

# Larger chunks are kept as they are. Smaller ones are joined to parts: a list of them would take many times the memory
# of their bytes.
_LARGE_CHUNK_BYTES: Final = 1 << 12
PART_BYTES: Final = 1 << 20
# The copy of more bytes takes more than a few milliseconds.
_INLINE_BYTES: Final = 1 << 22


class ByteParts:
    """The chunks of one message or body."""

    __slots__ = ("_parts", "_tail", "size_bytes")

    def __init__(self) -> None:
        """Begin without bytes."""
        self._parts: list[bytes | memoryview] = []
        self._tail = bytearray()
        self.size_bytes = 0

    def add(self, chunk: bytes | memoryview) -> None:
        """Add a chunk. A large one is not copied before `join`. A view must be one of bytes."""
        self.size_bytes += len(chunk)
        if len(chunk) >= _LARGE_CHUNK_BYTES:
            self._end_part()
            self._parts.append(chunk)
            return
        self._tail += chunk
        if len(self._tail) >= PART_BYTES:
            self._end_part()

    async def join(self) -> bytes:
        """Return all bytes. Many bytes are copied by a thread, without the GIL."""
        self._end_part()
        if self.size_bytes <= _INLINE_BYTES:
            return b"".join(self._parts)
        return await asyncio.to_thread(b"".join, self._parts)

    def clear(self) -> None:
        """Drop all bytes, because a traceback may refer to this object for long."""
        self._parts.clear()
        self._tail.clear()
        self.size_bytes = 0

    def _end_part(self) -> None:
        if self._tail:
            self._parts.append(bytes(self._tail))
            self._tail.clear()
