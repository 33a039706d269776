"""Conversion of callers' values to arrays that a tensor can hold. Independent of protobuf, which REST does not need."""

import numpy as np

from tpuserve_client import dtypes
from tpuserve_client.dtypes import STRING, Array
from tpuserve_client.errors import InvalidArgument

# Kinds of numpy's text dtypes: fixed-width str, fixed-width bytes, variable-width str.
_TEXT_KINDS = frozenset("UST")


def as_array(value: object) -> Array:
    """Convert `value` to an array that a tensor can hold. Text becomes dtype object with UTF-8 `bytes` elements.

    Numbers keep the dtype that numpy chooses and are not copied. Raises InvalidArgument for a ragged list, or for any
    value other than numbers, booleans and text.
    """
    array = _natural_array(value)
    if array.dtype.kind in _TEXT_KINDS or array.dtype == STRING:
        return _as_bytes(array)
    dtypes.to_wire(array.dtype)  # raises InvalidArgument for dtypes that no tensor can hold
    return array


def _natural_array(value: object) -> Array:
    try:
        array = np.asarray(value)
    except UnicodeError:  # str and bytes in one list
        return np.array(value, dtype=object)
    except ValueError as error:
        raise InvalidArgument(f"Not an array: {error}") from None
    if array.dtype.kind in _TEXT_KINDS and not isinstance(value, np.ndarray):
        return np.array(value, dtype=object)  # numpy's fixed-width text would cut trailing NULs
    return array


def _as_bytes(array: Array) -> Array:
    encoded = np.empty(array.shape, STRING)
    flat = encoded.reshape(-1)
    for index, item in enumerate(array.astype(object).reshape(-1)):
        if isinstance(item, str):
            flat[index] = item.encode()
        elif isinstance(item, bytes):
            flat[index] = item
        else:
            raise InvalidArgument(f"A string tensor must contain str or bytes, not {type(item).__name__}.")
    return encoded
