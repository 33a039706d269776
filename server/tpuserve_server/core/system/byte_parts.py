"""ByteParts: bytes that arrive in chunks, put together without blocking the event loop (decision 122)."""

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias, cast

from tpuserve_server.core.system.alignment import aligned_bytes
from tpuserve_server.core.terms.types import Body

# Larger chunks are kept as they are. Smaller ones are joined to parts: a list of them would take many times the memory
# of their bytes.
_LARGE_CHUNK_BYTES: Final = 1 << 12
PART_BYTES: Final = 1 << 20
# The copy of more bytes takes more than a few milliseconds.
_INLINE_BYTES: Final = 1 << 22
# The batcher copies smaller tensors in less time than the search for their contents takes.
LARGE_CONTENTS_BYTES: Final = 1 << 16
# Bytes of a message in which the contents of a large tensor begin, unless it has very many small ones.
_HEAD_BYTES: Final = 1 << 12
# Memory for a message is allocated when it has this share of its bytes: those that arrive are charged to a budget,
# those that a client declares are not.
_ARRIVED_SHARE: Final = 1 / 16
# Returns where the contents of the first large tensor begin in a message, from its first bytes. None: nowhere in them.
FindContents: TypeAlias = Callable[[bytes], int | None]


class ByteParts:
    """The chunks of one message or body."""

    __slots__ = ("_begin_bytes", "_declared_bytes", "_find_contents", "_memory", "_parts", "_tail", "size_bytes")

    def __init__(self, declared_bytes: int = 0, find_contents: FindContents | None = None) -> None:
        """Begin without bytes.

        If `find_contents` finds a large tensor in a message that declares its size, `join` aligns the contents.
        """
        self._parts: list[bytes | memoryview] = []
        self._tail = bytearray()
        self.size_bytes = 0
        self._declared_bytes = declared_bytes
        self._find_contents = find_contents if declared_bytes >= LARGE_CONTENTS_BYTES else None
        self._begin_bytes = max(_HEAD_BYTES, int(declared_bytes * _ARRIVED_SHARE))
        # All of a message with a large tensor. Its chunks are copied when they arrive, while the caches have them.
        self._memory: memoryview | None = None

    def add(self, chunk: bytes | memoryview) -> None:
        """Add a chunk. A large one is not copied before `join`, or only here. A view must be one of bytes."""
        start = self.size_bytes
        self.size_bytes = stop = start + len(chunk)
        if (memory := self._memory) is not None:
            if stop <= self._declared_bytes:
                memory[start:stop] = chunk
                return
            self._parts, self._memory = [bytes(memory[:start])], None
        if len(chunk) >= _LARGE_CHUNK_BYTES:
            self._end_part()
            self._parts.append(chunk)
        else:
            self._tail += chunk
            if len(self._tail) >= PART_BYTES:
                self._end_part()
        if self._find_contents is not None and stop >= self._begin_bytes:
            self._allocate(self._find_contents)

    async def join(self) -> Body:
        """Return all bytes. Many bytes are copied by a thread, without the GIL.

        The bytes of a message with a large tensor are a bytearray, in which the contents are aligned.
        """
        if self._memory is not None:
            joined = cast("bytearray", self._memory.obj)
            self._memory.release()
            del joined[self.size_bytes :]
            return joined
        self._end_part()
        if self.size_bytes <= _INLINE_BYTES:
            return b"".join(self._parts)
        return await asyncio.to_thread(b"".join, self._parts)

    def clear(self) -> None:
        """Drop all bytes, because a traceback may refer to this object for long."""
        self._parts.clear()
        self._tail.clear()
        self._memory = None
        self.size_bytes = 0

    def _end_part(self) -> None:
        if self._tail:
            self._parts.append(bytes(self._tail))
            self._tail.clear()

    def _allocate(self, find_contents: FindContents) -> None:
        """Move the bytes into memory for the whole message, if they begin with a large tensor."""
        self._find_contents = None
        self._end_part()
        head = b""
        for part in self._parts:
            head += part[: _HEAD_BYTES - len(head)]
            if len(head) == _HEAD_BYTES:
                break
        start = find_contents(head)
        if start is None or self._declared_bytes - start < LARGE_CONTENTS_BYTES:
            return
        parts, self._parts = self._parts, []
        self._memory = memoryview(aligned_bytes(self._declared_bytes, start))
        self.size_bytes = 0
        for part in parts:
            self.add(part)
