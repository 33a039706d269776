"""Conversion of callers' inputs to arrays with the dtypes that the model expects."""

from collections.abc import Mapping

import numpy as np

from tpuserve_client.arrays import as_array
from tpuserve_client.dtypes import Array, describe
from tpuserve_client.errors import InvalidArgument
from tpuserve_client.model import ModelSpec, Signature, TensorSpec
from tpuserve_client.names import named_values
from tpuserve_client.ragged import pack_rows, split_names

_ARRAYS = (np.ndarray, np.generic)
# Kinds of numpy dtypes that each kind of input accepts from a list, without losing fractions or meaning.
# V is the kind of ml_dtypes' bfloat16 and float8.
_ACCEPTED_KINDS = {"b": "b", "i": "iu", "u": "iu", "f": "iuf", "V": "iuf", "c": "iufc"}


def needs_signature(inputs: object) -> bool:
    """Return whether the inputs need the signature: a bare array has no name, and a list has no dtype."""
    if not isinstance(inputs, Mapping):
        return True
    try:
        return not all(isinstance(value, _ARRAYS) for value in inputs.values())
    except Exception as error:  # a caller's class can raise anything
        raise _unreadable(error) from error


def named_arrays(inputs: object, spec: ModelSpec, signature: Signature | None) -> dict[str, Array]:
    """Convert inputs to arrays by name. `signature` is required if `needs_signature` returns True.

    An array keeps its dtype, and the server refuses a wrong one. Lists and numbers take the model's dtype. Lists of
    rows for a ragged input become its values and row splits.

    Raises InvalidArgument for a bare value if the model does not have exactly one input. Raises it also for values that
    do not fit and for names that are not strings.
    """
    if isinstance(inputs, Mapping):
        named = named_values("name of an input", inputs)
    else:
        named = {_only_input(spec, signature): inputs}
    if signature is not None:
        named = _packed(named, signature)
    specs = signature.inputs if signature is not None else {}
    return {name: _array(name, value, specs.get(name)) for name, value in named.items()}


def _packed(inputs: Mapping[str, object], signature: Signature) -> dict[str, object]:
    try:
        return pack_rows(inputs, signature)
    except Exception as error:  # the rows are a caller's sequences
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> InvalidArgument:
    return InvalidArgument(f"Cannot read the inputs: {type(error).__name__}: {error}")


def _only_input(spec: ModelSpec, signature: Signature | None) -> str:
    names = sorted(signature.inputs) if signature else []
    if signature is not None and len(names) > 1:
        splits = {one for name in names for one in split_names(name, signature)}
        names = [name for name in names if name not in splits]
    if len(names) != 1:
        raise InvalidArgument(f"Model {spec} has {len(names)} inputs {names}. Pass a mapping from name to array.")
    return names[0]


def _array(name: str, value: object, spec: TensorSpec | None) -> Array:
    try:
        array = as_array(value)
    except InvalidArgument as error:
        raise InvalidArgument(f"Input {name}: {error.message}") from error.__cause__
    if isinstance(value, _ARRAYS) or spec is None or spec.dtype is None or array.dtype == spec.dtype:
        return array
    return _cast(array, spec)


def _cast(array: Array, spec: TensorSpec) -> Array:
    assert spec.dtype is not None  # the caller has checked
    if not array.size:  # numpy's dtype of an empty list means nothing
        return np.empty(array.shape, spec.dtype)
    if array.dtype.kind in _ACCEPTED_KINDS.get(spec.dtype.kind, ""):
        # A float out of range becomes infinite, as in the server. A signalling NaN becomes a quiet one.
        with np.errstate(over="ignore", invalid="ignore"):
            converted: Array = array.astype(spec.dtype)
        if spec.dtype.kind not in "iu" or np.array_equal(converted, array):
            return converted
    raise InvalidArgument(f"Input {spec} cannot represent the {describe(array.dtype)} values.")
