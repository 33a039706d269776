"""Checks a predict request against its signature, before it is queued with others."""

from collections.abc import Iterable

import numpy as np

from tpuserve_server.core.errors import InvalidArgument, shown, shown_names
from tpuserve_server.core.types import Array, ServableId, Signature, Tensors, TensorSpec


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


def check_inputs(servable_id: ServableId, signature: Signature, inputs: Tensors) -> bool:
    """Check names and dtypes, and return whether all ranks and known dimensions also match the signature.

    Raises:
        InvalidArgument: naming the input, the expected dtype and the received one; or as `check_names`.
    """
    check_names(signature, inputs)
    matches = True
    for name, array in inputs.items():
        spec = signature.inputs[name]
        if array.dtype != spec.dtype:
            raise InvalidArgument(
                f"Input '{name}' of {_of(servable_id, signature)} has dtype {_dtype(array)}, expected {_dtype(spec)}"
            )
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
        f"input '{name}' has shape {list(array.shape)}, expected {_shape(signature.inputs[name])}"
        for name, array in inputs.items()
        if not signature.inputs[name].accepts_shape(array.shape)
    ]
    return f"{_of(servable_id, signature)}: {'; '.join(wrong)}"


def count_plain_rows(signature: Signature, inputs: Tensors) -> int:
    """Return the number of rows if all inputs match the signature exactly and have equally many rows, else 0.

    After 0, for a mismatch or inputs without rows, the other checks find the error. Most requests need no other check.
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
        if rows != shape[0] or not rows:
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


def _shape(spec: TensorSpec) -> str:
    return "any" if spec.shape is None else str([-1 if size is None else size for size in spec.shape])
