"""Sequences: pads the free inner dimensions of a signature's inputs to one of a few lengths, and cuts its outputs.

Pure functions. versions/sequence_trial.py runs a model to find the lengths that belong together.
"""

import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.types import Array, Signature, Tensors, TensorSpec

# A number of the input's dtype, or text for an input of strings.
PadValue: TypeAlias = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Axis:
    """One free inner dimension of a tensor. Dimension 0 holds the rows."""

    tensor: str
    dimension: int

    def __str__(self) -> str:
        return f"dimension {self.dimension} of '{self.tensor}'"


@dataclass(frozen=True, slots=True)
class Sequences:
    """How the sequences of one signature are padded before a run, and its outputs cut after it.

    A tuple of lengths holds one for each of `axes`, in their order. `follows` maps each free axis of an output to the
    input axes, by index, whose length it may have. `ties` groups the input axes that must have equal lengths for the
    model to run. Each axis is in one group. `ties` is None if unknown.
    """

    buckets: tuple[int, ...]
    axes: tuple[Axis, ...]
    pad_values: Mapping[str, object]
    follows: Mapping[Axis, tuple[int, ...]]
    ties: tuple[tuple[int, ...], ...] | None = field(default=None)

    @property
    def uncut(self) -> tuple[Axis, ...]:
        """Free axes of outputs that keep the length which the model gives them."""
        return tuple(axis for axis, followed in self.follows.items() if not followed)

    def own_lengths(self, inputs: Tensors) -> tuple[int, ...]:
        """Return the lengths of `inputs` before padding. `inputs` have the signature's ranks."""
        return tuple([inputs[axis.tensor].shape[axis.dimension] for axis in self.axes])

    def padded_lengths(self, inputs: Tensors) -> tuple[int, ...]:
        """Return the lengths of `inputs`, each rounded up to a bucket.

        Raises:
            InvalidArgument: a length exceeds the last bucket, or lengths within a tie differ.
        """
        own = self.own_lengths(inputs)
        for tie in self.ties or ():
            self._check_equal(tie, own)
        return tuple([self._round_up(axis, length) for axis, length in zip(self.axes, own, strict=True)])

    def row_shapes(self, own: Mapping[str, tuple[int, ...]], lengths: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """Return each input's row shape after padding to `lengths`. `own` are the shapes before."""
        shapes = {name: list(shape) for name, shape in own.items()}
        for axis, length in zip(self.axes, lengths, strict=True):
            shapes[axis.tensor][axis.dimension - 1] = length
        return {name: tuple(shape) for name, shape in shapes.items()}

    def crop(self, inputs: Tensors, lengths: Sequence[int]) -> Tensors:
        """Return views of the inputs, cut to `lengths`."""
        ends: dict[str, dict[int, int]] = {}
        for axis, length in zip(self.axes, lengths, strict=True):
            ends.setdefault(axis.tensor, {})[axis.dimension] = length
        return {name: _cut(array, ends[name]) if name in ends else array for name, array in inputs.items()}

    def cut(self, outputs: Tensors, own: Sequence[int], padded: Sequence[int]) -> Tensors:
        """Return views of the outputs of a run with `padded` lengths, without the padding beyond the `own` lengths.

        An axis is cut if it has the padded length of an axis that it follows.

        Raises:
            InvalidArgument: an axis may follow inputs of different lengths, so its end is ambiguous.
        """
        if own == padded:
            return outputs
        ends: dict[str, dict[int, int]] = {}
        for axis, followed in self.follows.items():
            size = outputs[axis.tensor].shape[axis.dimension] if axis.tensor in outputs else None
            lengths = {own[index] for index in followed if padded[index] == size}
            if len(lengths) > 1:
                raise self._ambiguous(axis, lengths)
            if lengths:
                ends.setdefault(axis.tensor, {})[axis.dimension] = lengths.pop()
        return {name: _cut(array, ends[name]) if name in ends else array for name, array in outputs.items()}

    def combinations(self) -> Iterator[tuple[int, ...]]:
        """Yield the lengths that padded requests can have. If ties are unknown, yield only equal lengths."""
        ties = self.ties if self.ties is not None else (tuple(range(len(self.axes))),)
        tie_of = {index: number for number, tie in enumerate(ties) for index in tie}
        for chosen in itertools.product(self.buckets, repeat=len(ties)):
            yield tuple(chosen[tie_of[index]] for index in range(len(self.axes)))

    def _round_up(self, axis: Axis, length: int) -> int:
        index = bisect.bisect_left(self.buckets, length)
        if index == len(self.buckets):
            raise InvalidArgument(
                f"Input '{axis.tensor}' has length {length} in dimension {axis.dimension}; the largest sequence bucket "
                f"is {self.buckets[-1]}"
            )
        return self.buckets[index]

    def _check_equal(self, tie: Sequence[int], own: Sequence[int]) -> None:
        if len({own[index] for index in tie}) > 1:
            described = ", ".join(f"{self.axes[index]} {own[index]}" for index in tie)
            raise InvalidArgument(f"Lengths must be equal: {described}")

    def _ambiguous(self, axis: Axis, lengths: set[int]) -> InvalidArgument:
        shown = " or ".join(str(length) for length in sorted(lengths))
        return InvalidArgument(
            f"Inputs of different lengths were padded to one sequence bucket, and the length of dimension "
            f"{axis.dimension} of output '{axis.tensor}' is ambiguous: {shown}"
        )


def find_sequences(
    signature: Signature, buckets: tuple[int, ...], pad_values: Mapping[str, PadValue] | None = None
) -> Sequences | None:
    """Return the padding of a batched signature, or None if no input has a free inner dimension.

    At first any free inner dimension of an output may follow any input.

    Raises:
        InvalidArgument: a value in `pad_values` is not of its input's dtype.
    """
    axes = tuple(_free_axes(signature.inputs))
    if not axes:
        return None
    values = {
        axis.tensor: _pad_value(signature.inputs[axis.tensor], (pad_values or {}).get(axis.tensor)) for axis in axes
    }
    follows = dict.fromkeys(_free_axes(signature.outputs), tuple(range(len(axes))))
    return Sequences(buckets, axes, values, follows)


def _free_axes(specs: Mapping[str, TensorSpec]) -> list[Axis]:
    return [
        Axis(name, dimension)
        for name, spec in specs.items()
        for dimension, size in enumerate(spec.shape or ())
        if dimension > 0 and size is None
    ]


def _pad_value(spec: TensorSpec, value: PadValue | None) -> object:
    """Return `value`, or by default zero, which masks, token ids and one-hot features use for padding, or b"".

    TensorFlow Serving pads with the request's first value instead. The model would read
    that value as an ordinary token.
    """
    if spec.dtype.hasobject:
        if isinstance(value, str | None):
            return (value or "").encode()
    elif not isinstance(value, str) and _fits(value or 0, spec.dtype):
        return value or 0
    raise InvalidArgument(f"Input '{spec.name}' cannot be padded with {value!r}: its dtype is {spec.dtype}")


def _fits(value: float, dtype: np.dtype[Any]) -> bool:
    """Return whether an integer dtype holds `value` exactly. Floating-point dtypes round it."""
    if dtype.kind not in "biu":
        return True
    return float(value).is_integer() and bool(np.asarray(int(value)).astype(dtype) == value)


def _cut(array: Array, ends: Mapping[int, int]) -> Array:
    return array[tuple(slice(ends.get(dimension)) for dimension in range(array.ndim))]
