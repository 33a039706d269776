"""Conversion between JSON values and numpy arrays, in TensorFlow Serving's format.

Numbers become Python objects here, and gRPC is faster. The json module reads and writes NaN, Infinity and -Infinity as
bare tokens, like the server.
"""

import base64
import binascii
from collections.abc import Callable
from typing import Any

import numpy as np

from tpuserve_client import dtypes
from tpuserve_client.dtypes import STRING, Array, DType
from tpuserve_client.errors import InvalidArgument
from tpuserve_client.model import TensorSpec
from tpuserve_formats.dtypes import BY_DTYPE

# Sent as float32 numbers. float32 represents all values of these types.
_NARROW_FLOATS = frozenset(
    dtype for dtype, wire_type in BY_DTYPE.items() if wire_type.field in ("half_val", "float8_val")
)


def to_json(array: Array) -> Any:  # noqa: ANN401  JSON of any depth
    """Convert an array from `arrays.as_array` to nested lists (a scalar to a bare value); strings become {"b64": …}.

    Nested lists lose the dimensions after a zero (see `keeps_shape`). Raises InvalidArgument for complex numbers, which
    JSON cannot represent.
    """
    if array.dtype.kind == "c":
        raise InvalidArgument(f"A {dtypes.describe(array.dtype)} tensor cannot be sent over REST. Use gRPC.")
    if array.dtype == STRING:
        return _map_leaves(array.tolist(), lambda item: {"b64": base64.b64encode(item).decode()})
    return (array.astype(np.float32) if array.dtype in _NARROW_FLOATS else array).tolist()


def keeps_shape(array: Array) -> bool:
    """Return whether nested lists represent the array's shape. An empty list says nothing about inner dimensions."""
    return 0 not in array.shape[:-1]


def from_json(value: object, spec: TensorSpec) -> Array:
    """Convert a JSON value to an array of the spec's dtype. Raises ValueError if it does not fit.

    JSON loses the inner dimensions of an empty list. This function takes them from the spec's shape, with 0 for an
    unknown dimension.
    """
    if spec.dtype is None:
        raise ValueError(f"output {spec.name} has a dtype that numpy does not have")
    array = _strings(value) if spec.dtype == STRING else _numbers(value, spec.dtype)
    if array.size == 0 and spec.shape is not None and len(spec.shape) > array.ndim:
        return np.empty([*array.shape, *(size or 0 for size in spec.shape[array.ndim :])], spec.dtype)
    return array


def _numbers(value: object, dtype: DType) -> Array:
    try:
        if dtype in _NARROW_FLOATS:
            return np.array(value, np.float32).astype(dtype)
        return np.array(value, dtype)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"not {dtypes.describe(dtype)} numbers: {error}") from None


def _strings(value: object) -> Array:
    # Base64 objects are leaves. numpy must find depth only in lists.
    array = np.array(_map_leaves(value, _string), STRING)
    if any(isinstance(item, list) for item in array.reshape(-1)):
        raise ValueError("lists of different lengths")
    return array


def _string(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")  # reverses parse_object's decoding of other bytes
    if isinstance(value, dict) and isinstance(value.get("b64"), str):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except binascii.Error as error:
            raise ValueError(f"not base64: {error}") from None
    raise ValueError(f"not a string: {value!r:.80}")


def _map_leaves(value: object, convert: Callable[[Any], object]) -> object:
    if isinstance(value, list):
        return [_map_leaves(item, convert) for item in value]
    return convert(value)
