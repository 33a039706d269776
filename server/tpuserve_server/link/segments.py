"""Segments: shared memory for the arrays of a message that would be too large for the socket.

Each end of a connection owns the segments that it writes. A segment is an anonymous file (memfd_create) of which both
processes hold a descriptor, so the kernel frees it after the end of both, however they end. The receiver reports
when the last array on a segment is gone. Then the owner writes the next arrays to it.
"""

import mmap
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from tpuserve_server.core.types import Array

# Smaller arrays travel in the message: a copy of them costs less than a segment's bookkeeping.
LARGE_BYTES: Final = 16 << 10
# Each array begins at a multiple, as numpy and TensorFlow align their own.
_ALIGNMENT: Final = 64
# Sizes are powers of two, so that another message can use a segment.
_LEAST_BYTES: Final = 64 << 10
# Unused segments beyond this are freed.
_MOST_IDLE_BYTES: Final = 64 << 20


class _Segment:
    __slots__ = ("capacity", "descriptor", "memory", "number")

    def __init__(self, number: int, capacity: int) -> None:
        self.number = number
        self.capacity = capacity
        self.descriptor = os.memfd_create("tpuserve-link", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.descriptor, capacity)
            self.memory = mmap.mmap(self.descriptor, capacity)
        except OSError:
            os.close(self.descriptor)
            raise

    def close(self) -> None:
        self.memory.close()
        os.close(self.descriptor)


class SegmentWriter:
    """The segments that this process writes. One event loop's thread owns it."""

    def __init__(self, on_new: Callable[[int], None], on_freed: Callable[[int], None]) -> None:
        """Call `on_new` with the descriptor of each new segment, and `on_freed` with the number of a freed one.

        The receiver numbers them from 0 in the same order.
        """
        self._on_new, self._on_freed = on_new, on_freed
        self._count = 0
        self._used: dict[int, _Segment] = {}
        self._idle: dict[int, list[_Segment]] = {}
        self._idle_bytes = 0

    def write(self, arrays: Sequence[Array]) -> int:
        """Copy arrays into a segment, and return its number. It is in use until `release`. Raises OSError."""
        segment = self._take(sum(aligned(array.nbytes) for array in arrays))
        at = 0
        for array in arrays:
            np.frombuffer(segment.memory, array.dtype, array.size, at).reshape(array.shape)[...] = array
            at += aligned(array.nbytes)
        return segment.number

    def write_all(self, several: Sequence[Sequence[Array]]) -> list[int]:
        """Write each to its own segment, or none. Raises OSError without memory or descriptors for a new one."""
        numbers: list[int] = []
        try:
            for arrays in several:
                numbers.append(self.write(arrays))  # noqa: PERF401 - the failure needs those before it
        except OSError:
            # The receiver learns of them at the end of the tick, so none may be freed now.
            for number in numbers:
                self._keep(self._used.pop(number))
            raise
        return numbers

    def release(self, number: int) -> None:
        """Use a segment again, because the receiver has no more arrays on it."""
        segment = self._used.pop(number)
        if self._idle_bytes + segment.capacity > _MOST_IDLE_BYTES:
            segment.close()
            self._on_freed(number)
            return
        self._keep(segment)

    def close(self) -> None:
        """Free all segments. The receiver keeps those whose arrays it still reads."""
        for segment in (*self._used.values(), *(one for idle in self._idle.values() for one in idle)):
            segment.close()
        self._used.clear()
        self._idle.clear()

    def _keep(self, segment: _Segment) -> None:
        self._idle.setdefault(segment.capacity, []).append(segment)
        self._idle_bytes += segment.capacity

    def _take(self, size_bytes: int) -> _Segment:
        capacity = max(_LEAST_BYTES, 1 << (size_bytes - 1).bit_length())
        if idle := self._idle.get(capacity):
            segment = idle.pop()
            self._idle_bytes -= capacity
        else:
            segment = _Segment(self._count, capacity)
            self._count += 1
            self._on_new(segment.descriptor)
        self._used[segment.number] = segment
        return segment


class SegmentReader:
    """The segments that the other process writes. One event loop's thread owns it, except for the end of arrays."""

    def __init__(self, on_unused: Callable[[int], None]) -> None:
        """Call `on_unused` with the number of each segment whose last array is gone, on any thread."""
        self._on_unused = on_unused
        self._count = 0
        self._memory: dict[int, mmap.mmap] = {}

    def add(self, descriptor: int) -> None:
        """Map the next new segment, and close its descriptor."""
        try:
            self._memory[self._count] = mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)
        self._count += 1

    def bytes_of(self, number: int) -> Array:
        """Return the bytes of a segment. Once all arrays on them are gone, the other process writes to it again."""
        whole = np.frombuffer(self._memory[number], np.uint8)
        weakref.finalize(whole, self._on_unused, number).atexit = False
        return whole

    def forget(self, number: int) -> None:
        """Unmap a segment that the other process has freed."""
        del self._memory[number]

    def close(self) -> None:
        """Unmap all segments, each once its arrays are gone."""
        self._memory.clear()


def aligned(size_bytes: int) -> int:
    """Return the space of an array in a segment."""
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
