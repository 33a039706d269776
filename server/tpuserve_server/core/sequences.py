"""Sequences: the free inner dimensions of a signature's inputs, padded to one of a few lengths; and its outputs', cut.

Pure. What runs a model to find out which lengths belong together is in versions/sequence_trial.py.
"""

import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.core.types import Array, Signature, Tensors, TensorSpec

# A number of the input's dtype, or text for one that holds strings.
PadValue: TypeAlias = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Axis:
    """One free inner dimension of a tensor. Dimension 0 is the rows'."""

    tensor: str
    dimension: int

    def __str__(self) -> str:
        return f"dimension {self.dimension} of '{self.tensor}'"


@dataclass(frozen=True, slots=True)
class Sequences:
    """How the sequences of one signature are padded before a run, and its outputs cut after.

    A tuple of lengths has one for each of `axes`, in their order. `follows` names for each free axis of an output the
    input axes, by index, whose length it may have. `ties` are those that have one length, or the model does not run;
    each axis is in one. None where nobody knows: then an output may follow any.
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
        """As they came. `inputs` have the signature's ranks."""
        return tuple([inputs[axis.tensor].shape[axis.dimension] for axis in self.axes])

    def padded_lengths(self, inputs: Tensors) -> tuple[int, ...]:
        """Each rounded up to a bucket.

        Raises:
            InvalidArgument: one is longer than the last bucket, or those of a tie differ.
        """
        own = self.own_lengths(inputs)
        for tie in self.ties or ():
            self._check_equal(tie, own)
        return tuple([self._round_up(axis, length) for axis, length in zip(self.axes, own, strict=True)])

    def row_shapes(self, own: Mapping[str, tuple[int, ...]], lengths: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """The shapes of a row of each input, `own` as they came, once it is padded to `lengths`."""
        shapes = {name: list(shape) for name, shape in own.items()}
        for axis, length in zip(self.axes, lengths, strict=True):
            shapes[axis.tensor][axis.dimension - 1] = length
        return {name: tuple(shape) for name, shape in shapes.items()}

    def crop(self, inputs: Tensors, lengths: Sequence[int]) -> Tensors:
        """Views of what is within `lengths`."""
        ends: dict[str, dict[int, int]] = {}
        for axis, length in zip(self.axes, lengths, strict=True):
            ends.setdefault(axis.tensor, {})[axis.dimension] = length
        return {name: _cut(array, ends[name]) if name in ends else array for name, array in inputs.items()}

    def cut(self, outputs: Tensors, own: Sequence[int], padded: Sequence[int]) -> Tensors:
        """Views of the outputs of a run padded to `padded`, without what belongs to the padding beyond `own`.

        An axis is cut when it has the padded length of what it follows.

        Raises:
            InvalidArgument: it may follow inputs of different length, so that nobody can tell where it ends.
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
        """Lengths that padded requests can have; where nothing is known of ties, only those that are all equal."""
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
            f"Inputs of different length were padded to one sequence bucket, and output '{axis.tensor}' does not tell "
            f"which of them its dimension {axis.dimension} has: {shown}"
        )


def find_sequences(
    signature: Signature, buckets: tuple[int, ...], pad_values: Mapping[str, PadValue] | None = None
) -> Sequences | None:
    """How to pad a batched signature; None where no input has a free inner dimension.

    Until more is known any free inner dimension of an output may follow any input.

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
    """Where nobody says one, zero: what masks, token ids and one-hot features mean by padding. Not the request's own
    first value, as TensorFlow Serving pads: that is a token like any other, and would be read as one.
    """
    if spec.dtype.hasobject:
        if isinstance(value, str | None):
            return (value or "").encode()
    elif not isinstance(value, str) and _fits(value or 0, spec.dtype):
        return value or 0
    raise InvalidArgument(f"Input '{spec.name}' cannot be padded with {value!r}: its dtype is {spec.dtype}")


def _fits(value: float, dtype: np.dtype[Any]) -> bool:
    """Whether integers hold it exactly; floating point rounds."""
    if dtype.kind not in "biu":
        return True
    return float(value).is_integer() and bool(np.asarray(int(value)).astype(dtype) == value)


def _cut(array: Array, ends: Mapping[int, int]) -> Array:
    return array[tuple(slice(ends.get(dimension)) for dimension in range(array.ndim))]
