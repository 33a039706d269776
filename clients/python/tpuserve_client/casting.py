"""Conversion of callers' inputs to arrays with the dtypes that the model expects."""

from collections.abc import Mapping

import numpy as np

from tpuserve_client.arrays import as_array
from tpuserve_client.dtypes import Array, describe
from tpuserve_client.errors import InvalidArgument
from tpuserve_client.model import ModelSpec, Signature, TensorSpec
from tpuserve_client.ragged import pack_rows, split_names

# Kinds of numpy dtypes that each kind of input accepts from a list, without losing fractions or meaning.
# V is the kind of ml_dtypes' bfloat16 and float8.
_ACCEPTED_KINDS = {"b": "b", "i": "iu", "u": "iu", "f": "iuf", "V": "iuf", "c": "iufc"}


def needs_signature(inputs: object) -> bool:
    """Return whether the inputs need the signature: a bare array has no name, and a list has no dtype."""
    if not isinstance(inputs, Mapping):
        return True
    return not all(isinstance(value, np.ndarray | np.generic) for value in inputs.values())


def named_arrays(inputs: object, spec: ModelSpec, signature: Signature | None) -> dict[str, Array]:
    """Convert inputs to arrays by name. `signature` is required if `needs_signature` returns True.

    An array keeps its dtype, and the server refuses a wrong one. Lists and numbers take the model's dtype. Lists of
    rows for a ragged input become its values and row splits.

    Raises InvalidArgument for a bare value if the model does not have exactly one input. Raises it also for values that
    do not fit and for names that are not strings.
    """
    if not isinstance(inputs, Mapping):
        inputs = {_only_input(spec, signature): inputs}
    if signature is not None:
        inputs = pack_rows(inputs, signature)
    if invalid := [name for name in inputs if not isinstance(name, str)]:
        raise InvalidArgument(f"Model {spec}: the name of an input must be a string, not {invalid[0]!r:.40}.")
    specs = signature.inputs if signature is not None else {}
    return {name: _array(value, specs.get(name)) for name, value in inputs.items()}


def _only_input(spec: ModelSpec, signature: Signature | None) -> str:
    names = sorted(signature.inputs) if signature else []
    if signature is not None and len(names) > 1:
        splits = {one for name in names for one in split_names(name, signature)}
        names = [name for name in names if name not in splits]
    if len(names) != 1:
        raise InvalidArgument(f"Model {spec} has {len(names)} inputs {names}. Pass a mapping from name to array.")
    return names[0]


def _array(value: object, spec: TensorSpec | None) -> Array:
    array = as_array(value)
    if isinstance(value, np.ndarray | np.generic) or spec is None or spec.dtype is None or array.dtype == spec.dtype:
        return array
    return _cast(array, spec)


def _cast(array: Array, spec: TensorSpec) -> Array:
    assert spec.dtype is not None  # the caller has checked
    if not array.size:  # numpy's dtype of an empty list means nothing
        return np.empty(array.shape, spec.dtype)
    if array.dtype.kind in _ACCEPTED_KINDS.get(spec.dtype.kind, ""):
        with np.errstate(over="ignore"):  # a float out of range becomes infinite, as in the server
            converted: Array = array.astype(spec.dtype)
        if spec.dtype.kind not in "iu" or np.array_equal(converted, array):
            return converted
    raise InvalidArgument(f"Input {spec} cannot represent the {describe(array.dtype)} values.")
