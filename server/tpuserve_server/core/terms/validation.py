"""Checks a predict request against its signature, before it is queued with others.

`ShapeRules` decides which shapes of inputs a server runs, for every protocol. Kernels trust the shapes of their inputs:
some end the process for another rank, or allocate what the dimensions of an empty tensor promise
(docs/explanation/decisions/0079-inputs-have-the-shapes-of-the-signature.md).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from tpuserve_server.core.terms.errors import InvalidArgument, shown, shown_names
from tpuserve_server.core.terms.types import Array, ServableId, Signature, Tensors, TensorSpec

# No operation of TensorFlow or XLA that servers meet takes more dimensions.
MOST_DIMENSIONS: Final = 8
# Limits of a tensor without elements: its largest free dimension, and the product of all of them with zeros counted as
# ones. Such a tensor costs its sender nothing, and its dimensions become sizes of other tensors and counts of loops.
MOST_EMPTY_DIMENSION: Final = 1 << 11
MOST_EMPTY_SIZE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class ShapeRules:
    """The shapes of inputs that a server runs.

    `is_lenient`: a rank or a dimension may differ from the signature's, as in TensorFlow Serving. The model decides.
    """

    is_lenient: bool = False

    def check(self, servable_id: ServableId, signature: Signature, name: str, shape: tuple[int, ...]) -> None:
        """Check the shape of an input of the signature. Needs no memory, so that a declared shape can be checked.

        Raises:
            InvalidArgument: the shape does not match the signature, has too many dimensions, or has no elements but
                large dimensions.
        """
        spec = signature.inputs[name]
        if not self.is_lenient and not spec.accepts_shape(shape):
            raise InvalidArgument(
                f"{_of(servable_id, signature)}: {_describe_shape(spec, shape)}. The server's flag --lenient_shapes "
                "passes other shapes to the model"
            )
        fixed = spec.shape if spec.shape is not None and len(spec.shape) == len(shape) else None
        if fixed is None and len(shape) > MOST_DIMENSIONS:
            limit = f"at most {MOST_DIMENSIONS} dimensions"
        elif 0 in shape and not _is_small(_free_sizes(fixed, shape)):
            limit = (
                f"no elements only if its other free dimensions are at most {MOST_EMPTY_DIMENSION}, and their product "
                f"at most {MOST_EMPTY_SIZE}"
            )
        else:
            return
        raise InvalidArgument(
            f"{_of(servable_id, signature)}: input '{name}' has shape {_sizes(shape)}, but may have {limit}"
        )


EXACT_SHAPES: Final = ShapeRules()


def check_names(signature: Signature, inputs: Tensors) -> None:
    """Check that the inputs are those of the signature, except that inputs with a default may be missing.

    Raises:
        InvalidArgument: with TensorFlow Serving's wording (servables/tensorflow/predict_util.cc).
    """
    # Do not compare keys(): the map of a protobuf message builds a separate list for that.
    if len(inputs) == len(signature.inputs) and all(name in inputs for name in signature.inputs):
        return
    missing = signature.inputs.keys() - inputs.keys()
    extra = inputs.keys() - signature.inputs.keys()
    if extra or not missing <= signature.defaults.keys():
        raise InvalidArgument(
            f"input size does not match signature: {len(inputs)}!={len(signature.inputs)} len({_braces(inputs)}) != "
            f"len({_braces(signature.inputs)}). Sent extra: {_braces(extra)}. Missing but required: "
            f"{_braces(missing - signature.defaults.keys())}."
        )


def with_defaults(signature: Signature, inputs: Tensors) -> Tensors:
    """Return inputs that `check_names` has accepted, with the signature's defaults for missing ones."""
    lacking = signature.inputs.keys() - inputs.keys()
    return {**inputs, **{name: signature.defaults[name] for name in lacking}}


def check_inputs(
    servable_id: ServableId, signature: Signature, inputs: Tensors, rules: ShapeRules = EXACT_SHAPES
) -> bool:
    """Check names, dtypes and shapes. Return whether all ranks and known dimensions match, as exact rules require.

    Raises:
        InvalidArgument: naming the input, what was expected and what was received.
    """
    check_names(signature, inputs)
    matches = True
    for name, array in inputs.items():
        spec = signature.inputs[name]
        if array.dtype != spec.dtype:
            raise InvalidArgument(
                f"Input '{name}' of {_of(servable_id, signature)} has dtype {_dtype(array)}, expected {_dtype(spec)}"
            )
        rules.check(servable_id, signature, name, array.shape)
        matches = matches and spec.accepts_shape(array.shape)
    return matches


def matches_shapes(signature: Signature, inputs: Tensors) -> bool:
    """Return whether every input has the rank and the known dimensions of the signature."""
    return all(signature.inputs[name].accepts_shape(array.shape) for name, array in inputs.items())


def check_row_splits(signature: Signature, inputs: Tensors) -> None:
    """Check that row splits of every ragged input begin at 0, do not decrease, and end at the number of items.

    `inputs` include the signature's defaults. Without this check operations would read beyond the values.

    Raises:
        InvalidArgument: naming the row splits, and what is wrong with them.
    """
    for name, names in signature.ragged_inputs.items():
        last = inputs[name].shape[0] if inputs[name].ndim else 0
        for one in reversed(names):
            _check_splits(one, name, inputs[one], last)
            last = len(inputs[one]) - 1


def _check_splits(name: str, of: str, splits: Array, last: int) -> None:
    # Compare instead of subtracting: differences of int64 wrap around.
    is_ascending = splits.ndim == 1 and splits.size > 0 and bool((splits[1:] >= splits[:-1]).all())
    if is_ascending and splits[0] == 0 and splits[-1] == last:
        return
    raise InvalidArgument(
        f"Input '{name}' contains row splits of the ragged '{of}': expected numbers from 0 to {last} that do not "
        f"decrease, got {np.array2string(splits, threshold=10)}"
    )


def describe_shapes(servable_id: ServableId, signature: Signature, inputs: Tensors) -> str:
    """Describe each input whose shape does not match the signature, in one sentence."""
    wrong = [
        _describe_shape(signature.inputs[name], array.shape)
        for name, array in inputs.items()
        if not signature.inputs[name].accepts_shape(array.shape)
    ]
    return f"{_of(servable_id, signature)}: {'; '.join(wrong)}"


def count_plain_rows(signature: Signature, inputs: Tensors) -> int:
    """Return the number of rows if all inputs match the signature exactly and have equally many rows, else 0.

    After 0, for a mismatch or inputs without elements, the other checks find the error. Most requests need no other
    check.
    """
    specs = signature.inputs
    if len(inputs) != len(specs):
        return 0
    rows = 0
    for name, array in inputs.items():
        spec, shape = specs.get(name), array.shape
        if spec is None or not shape or array.dtype != spec.dtype or not spec.accepts_shape(shape):
            return 0
        rows = rows or shape[0]
        if rows != shape[0] or not array.size or len(shape) > MOST_DIMENSIONS:
            return 0
    return rows


def check_batchable(inputs: Tensors) -> None:
    """Check the rules for inputs of a batched signature, whatever their shape (TensorFlow's ComputeTensorBatchSize).

    Raises:
        InvalidArgument: an input is a scalar, or the 0th dimensions of inputs differ.
    """
    if not all(array.ndim for array in inputs.values()):
        raise InvalidArgument("Batching Run() input tensors must have at least one dimension")
    count_rows(inputs)


def count_rows(inputs: Tensors) -> int:
    """Return the size of the 0th dimension that all inputs share.

    Raises:
        InvalidArgument: the sizes differ.
    """
    sizes: set[int] = {array.shape[0] for array in inputs.values()}
    if len(sizes) != 1:
        by_name = {name: array.shape[0] for name, array in inputs.items()}
        raise InvalidArgument(f"Batching Run() input tensors must have equal 0th-dimension size; got {by_name}")
    return sizes.pop()


def choose_outputs(signature: Signature, output_filter: Iterable[str]) -> tuple[str, ...]:
    """Return the requested outputs in the signature's order, or all outputs if the filter is empty.

    Raises:
        InvalidArgument: an unknown or a repeated name, with TensorFlow Serving's wording.
    """
    wanted = tuple(output_filter)
    if not wanted:
        return tuple(signature.outputs)
    for index, name in enumerate(wanted):
        if name not in signature.outputs:
            raise InvalidArgument(
                f"output tensor alias not found in signature: {shown(name)} "
                f"Outputs expected to be in the set {_braces(signature.outputs)}."
            )
        if name in wanted[:index]:
            raise InvalidArgument(f"duplicate output tensor alias: {shown(name)}")
    return tuple(name for name in signature.outputs if name in wanted)


def _braces(names: Iterable[str]) -> str:
    return "{" + shown_names(names) + "}"


def _of(servable_id: ServableId, signature: Signature) -> str:
    return f"signature '{signature.name}' of model {servable_id.name} version {servable_id.version}"


def _dtype(of: Array | TensorSpec) -> str:
    return "string" if of.dtype.hasobject else str(of.dtype)


def _describe_shape(spec: TensorSpec, shape: tuple[int, ...]) -> str:
    expected = "any" if spec.shape is None else str([-1 if size is None else size for size in spec.shape])
    return f"input '{spec.name}' has shape {_sizes(shape)}, expected {expected}"


def _sizes(shape: tuple[int, ...]) -> str:
    """Return a shape as text, without the sizes after those that a message needs."""
    return str(list(shape)) if len(shape) <= 2 * MOST_DIMENSIONS else f"of {len(shape)} dimensions"


def _free_sizes(fixed: tuple[int | None, ...] | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes of a shape that the signature leaves free. `fixed` is None for an unknown or another rank."""
    if fixed is None:
        return shape
    return tuple([got for want, got in zip(fixed, shape, strict=True) if want != got])


def _is_small(sizes: tuple[int, ...]) -> bool:
    return max(sizes, default=0) <= MOST_EMPTY_DIMENSION and math.prod(size or 1 for size in sizes) <= MOST_EMPTY_SIZE
