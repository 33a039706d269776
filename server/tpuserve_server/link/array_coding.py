"""Coding of named arrays in messages: a layout by number, and bytes or a shared segment.

Requests of one client have arrays with the same names, dtypes and shapes. The sender describes these once. Large arrays
are copied once, into a segment, and the receiver reads them there.
"""

import contextlib
import math
import pickle
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from tpuserve_server.core.types import Array, Tensors
from tpuserve_server.link.connection import Connection, Handler
from tpuserve_server.link.messages import Kind, Packed
from tpuserve_server.link.segments import LARGE_BYTES, SegmentReader, SegmentWriter, aligned

# Arrays of ever new shapes are pickled, so that the layouts do not grow without end.
_MOST_LAYOUTS: Final = 4096
# Number of the layout of arrays without one.
PICKLED: Final = -1
_LayoutKey: TypeAlias = tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]
_Sized: TypeAlias = tuple[str, np.dtype[Any], tuple[int, ...], int]


class _Layout:
    """Names, dtypes and shapes of arrays, and their sizes."""

    __slots__ = ("arrays", "is_large")

    def __init__(self, key: _LayoutKey) -> None:
        sizes = [math.prod(shape) * dtype.itemsize for _, dtype, shape in key]
        self.arrays = [(*one, size) for one, size in zip(key, sizes, strict=True)]
        self.is_large = sum(sizes) >= LARGE_BYTES


class ArrayCoding:
    """Encodes the arrays that this process sends, and decodes those that it receives. The loop's thread owns it."""

    def __init__(self, connection: Connection) -> None:
        """Send layouts and segments over `connection`. The caller registers `handlers`."""
        self._connection = connection
        self._sent: dict[_LayoutKey, int] = {}
        # The latest layout of a single array: number, name, dtype and shape.
        self._latest: tuple[int, str, np.dtype[Any] | None, tuple[int, ...]] = (PICKLED, "", None, ())
        self._layouts: list[_Layout] = []
        self._received: list[_Layout] = []
        self._writer = SegmentWriter(self._announce, partial(self._send_number, Kind.SEGMENT_GONE))
        self._reader = SegmentReader(self._report_unused)

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers of the messages about layouts and segments."""
        return {
            Kind.LAYOUT: self._add_layout,
            Kind.SEGMENT_NEW: lambda _: self._reader.add(self._connection.take_descriptor()),
            Kind.SEGMENT_GONE: lambda payload: self._reader.forget(int(bytes(payload))),
            Kind.SEGMENT_UNUSED: lambda payload: self._writer.release(int(bytes(payload))),
        }

    def layout(self, tensors: Tensors) -> int:
        """Return the number of the layout of arrays, which is described to the other process if it is new."""
        number, name, dtype, shape = self._latest
        # Less than half the time of the search below, for every request of a model with one array.
        array = tensors.get(name) if len(tensors) == 1 else None
        if array is not None and array.dtype is dtype and array.shape == shape:
            return number
        key = tuple([(name, array.dtype, array.shape) for name, array in tensors.items()])
        known = self._sent.get(key)
        if known is None:
            known = self._learn(key)
        if len(key) == 1:
            self._latest = (known, *key[0])
        return known

    def pack(self, layout: int, several: Sequence[Tensors]) -> Packed:
        """Return the arrays of several tasks, all of this layout, as a part of a marshalled message."""
        if layout == PICKLED:
            return [pickle.dumps(dict(tensors), protocol=5) for tensors in several]
        if self._layouts[layout].is_large:
            with contextlib.suppress(OSError):  # Without memory or descriptors, the arrays travel in the message.
                return self._writer.write_all([tuple(tensors.values()) for tensors in several])
        if len(several) == 1:
            return tuple([array.tobytes() for array in several[0].values()])
        return tuple([b"".join([tensors[name].tobytes() for tensors in several]) for name in several[0]])

    def unpack(self, layout: int, packed: Packed, count: int) -> list[dict[str, Array]]:
        """Return the arrays of `count` tasks. They are read-only, or must be used as such."""
        if layout == PICKLED:
            return [pickle.loads(one) for one in packed]  # type: ignore[arg-type]  # bytes, as pack returned them
        arrays = self._received[layout].arrays
        if type(packed) is list:
            return [self._read_segment(arrays, number) for number in packed]  # type: ignore[arg-type]  # a number
        stacks = [
            _rows(np.ndarray((count, *shape), dtype, content))  # type: ignore[arg-type]  # bytes, as pack returned them
            for (_, dtype, shape, _), content in zip(arrays, packed, strict=True)
        ]
        if len(arrays) == 1:
            name = arrays[0][0]
            return [{name: array} for array in stacks[0]]
        names = [name for name, *_ in arrays]
        return [dict(zip(names, each, strict=True)) for each in zip(*stacks, strict=True)]

    def close(self) -> None:
        """Free the segments, once the arrays on them are gone."""
        self._writer.close()
        self._reader.close()

    def _learn(self, key: _LayoutKey) -> int:
        """Describe a new layout to the other process. Return PICKLED for arrays that must be pickled."""
        if len(self._sent) >= _MOST_LAYOUTS or not key or any(dtype.hasobject for _, dtype, _ in key):
            return PICKLED
        number = self._sent[key] = len(self._sent)
        self._layouts.append(_Layout(key))
        self._connection.send(Kind.LAYOUT, pickle.dumps(key, protocol=5))
        return number

    def _add_layout(self, payload: memoryview) -> None:
        self._received.append(_Layout(pickle.loads(payload)))

    def _read_segment(self, arrays: Sequence[_Sized], number: int) -> dict[str, Array]:
        whole, at, tensors = self._reader.bytes_of(number), 0, {}
        for name, dtype, shape, size in arrays:
            tensors[name] = whole[at : at + size].view(dtype).reshape(shape)
            at += aligned(size)
        return tensors

    def _announce(self, descriptor: int) -> None:
        self._connection.pass_descriptor(descriptor)
        self._connection.send(Kind.SEGMENT_NEW, b"")

    def _report_unused(self, number: int) -> None:
        """Report a segment. Called on the thread on which its last array ends."""
        self._connection.send_from_thread(Kind.SEGMENT_UNUSED, b"%d" % number)

    def _send_number(self, kind: int, number: int) -> None:
        self._connection.send(kind, b"%d" % number)


def _rows(stack: Array) -> list[Array]:
    # The elements of a vector are scalars, and not arrays without dimensions.
    return list(stack) if stack.ndim > 1 else [stack[k : k + 1].reshape(()) for k in range(len(stack))]
