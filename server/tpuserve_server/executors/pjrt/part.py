"""DevicePart: a part's compiled programs and weights. Finds a batch's program, pads inputs and crops outputs."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import jax
import numpy as np

from tpuserve_formats.manifest.device import DevicePartEntry
from tpuserve_formats.manifest.tensor import DeviceTensor
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import Array, Tensors
from tpuserve_server.executors.pjrt.failures import device_errors
from tpuserve_server.executors.pjrt.program import Program

# Pieces of a request on the device or in transfer: one runs while the inputs of the next arrive. All pieces together
# would need unbounded memory.
_PIECES_IN_FLIGHT = 2


class DevicePart:
    """Part of a version that runs on the devices. Any thread may start runs, several at once."""

    def __init__(self, entry: DevicePartEntry, programs: Sequence[Program], weights: Sequence[jax.Array]) -> None:
        """Take the weights in the order of the programs' arguments. Other parts may hold the same arrays."""
        self.entry = entry
        self._programs = {(program.batch_size, program.sequence_length): program for program in programs}
        self._sizes = sorted({size for size, _ in self._programs if size is not None})
        self._lengths = sorted({length for _, length in self._programs if length is not None})
        self._weights = tuple(weights)

    def start(self, inputs: Tensors, pad_values: Mapping[str, object], *, may_pad: bool) -> "PartRun":
        """Start a run and return at once.

        `may_pad` means that a row's result does not depend on other rows. The rows are then padded to the size of a
        program, or run in pieces if the largest program takes fewer. Without it, a program must take exactly this
        number of rows.

        Raises:
            InvalidArgument: there is no program for inputs of these shapes.
            ServingError: the device refuses the run.
        """
        rows, length = self._measure(inputs)
        size, padded_length = self._program_size(rows, may_pad=may_pad), self._program_length(length)
        program = self._programs.get((size, padded_length))
        if program is None:
            raise InvalidArgument(f"the version has no device program for {size} rows of length {padded_length}")
        cast = {
            name: _cast(name, inputs[name], dtype)
            for name, dtype in zip(self.entry.inputs, program.dtypes, strict=True)
        }
        pads = {name: pad_values.get(name, 0) for name in cast}
        starts = range(0, max(rows or 0, 1), size or 1)
        pieces = (self._run(program, cast, pads, slice(start, start + (size or 1))) for start in starts)
        return PartRun(self.entry, program, pieces, rows, length)

    def _run(self, program: Program, inputs: Tensors, pads: Mapping[str, object], rows: slice) -> Sequence[jax.Array]:
        arrays = [_fit(inputs[name], entry, program, rows, pads[name]) for name, entry in self.entry.inputs.items()]
        return program.run(arrays, self._weights)

    def _measure(self, inputs: Tensors) -> tuple[int | None, int | None]:
        """Return the number of rows, and the length of the other free dimensions; None without such a dimension."""
        rows: dict[int, str] = {}
        lengths: dict[int, str] = {}
        for name, entry in self.entry.inputs.items():
            array = inputs[name]
            if len(entry.shape) != array.ndim:
                raise _misshapen(name, array, entry)
            for axis, (known, size) in enumerate(zip(entry.shape, array.shape, strict=True)):
                if known is None:
                    (lengths if axis else rows).setdefault(size, name)
                elif known != size:
                    raise _misshapen(name, array, entry)
        return _only(rows, "rows"), _only(lengths, "lengths")

    def _program_size(self, rows: int | None, *, may_pad: bool) -> int | None:
        if rows is None:
            return None
        if rows in self._sizes:
            return rows
        if not may_pad or not self._sizes:
            raise InvalidArgument(
                f"the version has device programs for {_join(self._sizes)} rows only, because the rows depend on each "
                f"other; got {rows}"
            )
        return next((size for size in self._sizes if size > rows), self._sizes[-1])

    def _program_length(self, length: int | None) -> int | None:
        if length is None:
            return None
        found = next((one for one in self._lengths if one >= length), None)
        if found is None:
            raise InvalidArgument(
                f"the device programs accept lengths up to {max(self._lengths, default=0)}; got {length}"
            )
        return found


class PartRun:
    """Run on the devices, in one or several pieces, of which few are on the devices at a time."""

    def __init__(
        self,
        entry: DevicePartEntry,
        program: Program,
        pieces: Iterator[Sequence[jax.Array]],
        rows: int | None,
        length: int | None,
    ) -> None:
        """Start the first pieces: the next item of `pieces` starts one. Data beyond `rows` and `length` is padding."""
        self._entry = entry
        self._program = program
        self._waiting = pieces
        self._started = deque(islice(pieces, _PIECES_IN_FLIGHT))
        self._rows = rows
        self._length = length

    def result(self) -> dict[str, Array]:
        """Block until the devices have finished, and return the part's outputs by name, without padding.

        Raises:
            ServingError: the run failed.
        """
        pieces = []
        with device_errors("The run"):
            while self._started:
                # Views of the devices' outputs, whose transfer has already started.
                pieces.append([np.asarray(output) for output in self._started.popleft()])
                self._started.extend(islice(self._waiting, 1))
        return {
            name: self._cut(np.concatenate(arrays) if len(arrays) > 1 else arrays[0], entry)
            for (name, entry), arrays in zip(self._entry.outputs.items(), zip(*pieces, strict=True), strict=True)
        }

    def _cut(self, array: Array, entry: DeviceTensor) -> Array:
        if self._rows is not None and entry.has_rows and len(array) != self._rows:
            array = array[: self._rows]
        if self._length in (None, self._program.sequence_length):
            return array
        free = [axis for axis, size in enumerate(entry.shape) if axis and size is None]
        lengths = [self._length if axis in free else None for axis in range(array.ndim)]
        return array[tuple(slice(length) for length in lengths)]


def _fit(array: Array, entry: DeviceTensor, program: Program, rows: slice, pad: object) -> Array:
    """Return the array in the shape that the program takes. Copy it only if the shape differs."""
    if entry.has_rows:
        array = array[rows]
    shape = program.shape_of(entry)
    if array.shape == shape:
        return array
    # Pad sequences with their pad value, and rows with the last real row, because a row of zeros may divide by zero.
    padded: Array = np.full(shape, pad, array.dtype)
    padded[tuple(slice(size) for size in array.shape)] = array
    if len(array) and len(array) < len(padded):
        padded[len(array) :] = padded[len(array) - 1]
    return padded


def _cast(name: str, array: Array, dtype: np.dtype[Any]) -> Array:
    """Return the array as `dtype`, without a copy if it has that dtype."""
    if array.dtype.kind in "iu" and dtype.kind in "iu" and array.size and not np.can_cast(array.dtype, dtype):
        limits = np.iinfo(dtype)
        if array.min() < limits.min or array.max() > limits.max:
            raise InvalidArgument(f"'{name}' has values outside the range of {dtype}, the dtype in its device program")
    return array.astype(dtype, copy=False)


def _misshapen(name: str, array: Array, entry: DeviceTensor) -> InvalidArgument:
    taken = [-1 if size is None else size for size in entry.shape]
    return InvalidArgument(f"'{name}' has shape {list(array.shape)}; its device program takes {taken}")


def _only(sizes: Mapping[int, str], what: str) -> int | None:
    if len(sizes) > 1:
        found = ", ".join(f"'{name}' {size}" for size, name in sizes.items())
        raise InvalidArgument(f"the device programs require equal {what} in all inputs; got {found}")
    return next(iter(sizes), None)


def _join(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))
