"""Values as callers give them to arrays that a tensor can hold. No protobuf here: REST needs none."""

import numpy as np

from tpuserve_client import dtypes
from tpuserve_client.dtypes import STRING, Array
from tpuserve_client.errors import InvalidArgument

# numpy's kinds of text: fixed-width str, fixed-width bytes, variable-width str.
_TEXT_KINDS = frozenset("UST")


def as_array(value: object) -> Array:
    """`value` as an array that a tensor can hold: text becomes dtype object with UTF-8 `bytes` elements.

    Numbers keep numpy's own choice of dtype and are not copied. InvalidArgument for a ragged list, or for anything but
    numbers, booleans and text.
    """
    array = _natural_array(value)
    if array.dtype.kind in _TEXT_KINDS or array.dtype == STRING:
        return _as_bytes(array)
    dtypes.to_wire(array.dtype)  # refuses what no tensor can hold
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
            raise InvalidArgument(f"A string tensor holds str or bytes, not {type(item).__name__}.")
    return encoded
