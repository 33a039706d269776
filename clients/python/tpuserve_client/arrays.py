"""Conversion of callers' values to arrays that a tensor can hold. Independent of protobuf, which REST does not need."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from tpuserve_client import dtypes
from tpuserve_client.dtypes import STRING, Array
from tpuserve_client.errors import InvalidArgument, TpuserveError
from tpuserve_client.names import shown
from tpuserve_client.nested import check_masks, check_nesting, has_bytearray, with_bytes
from tpuserve_formats.dtypes import BY_DTYPE

# Kinds of numpy's text dtypes: fixed-width str, fixed-width bytes, variable-width str.
_TEXT_KINDS: Final = frozenset("UST")
_NUMBERS: Final = frozenset(BY_DTYPE.keys() - {STRING})
# Largest message of protobuf. JSON texts of as many bytes would be larger still.
_MAX_MESSAGE_BYTES: Final = 2**31 - 1


def as_array(value: object) -> Array:
    """Convert `value` to an array that a tensor can hold. Text becomes dtype object with UTF-8 `bytes` elements.

    Numbers keep the dtype that numpy chooses and are not copied. A bytearray is one string, like bytes. A memoryview is
    an array of its elements, as in numpy. Raises InvalidArgument for a ragged list, for masked elements, for values
    other than numbers, booleans and text, and for any exception of the value's own methods.
    """
    if type(value) is np.ndarray and value.dtype in _NUMBERS:  # the usual case, which needs no inspection
        return value
    try:
        array = _natural_array(value)
        if array.dtype.kind in _TEXT_KINDS or array.dtype == STRING:
            return _as_bytes(array)
    except TpuserveError:
        raise
    except ValueError as error:
        raise InvalidArgument(f"Not an array: {error}") from None
    except Exception as error:  # __array__ and the methods of a sequence can raise anything
        raise InvalidArgument(f"Not an array: {type(error).__name__}: {error}") from error
    dtypes.to_wire(array.dtype)  # raises InvalidArgument for dtypes that no tensor can hold
    return array


def _natural_array(value: object) -> Array:
    check_masks(value)
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    if isinstance(value, bytearray):
        value = bytes(value)
    check_nesting(value)
    try:
        array = _converted(value)
    except ValueError:
        if not has_bytearray(value):
            raise
        return _converted(with_bytes(value))
    if array.dtype == np.uint8 and has_bytearray(value):
        return _converted(with_bytes(value))
    if array.dtype == STRING and array.ndim == 0 and not isinstance(value, str | bytes):
        raise InvalidArgument(f"{shown(value)} is not an array. Pass numbers, text, a list of them, or a numpy array.")
    return array


def _converted(value: object) -> Array:
    try:
        array = np.asarray(value)
    except UnicodeError:  # str and bytes in one list
        return np.asarray(value, dtype=object)
    # numpy's fixed-width text would cut trailing NULs.
    return np.asarray(value, dtype=object) if array.dtype.kind in _TEXT_KINDS else array


def _as_bytes(array: Array) -> Array:
    encoded = np.empty(array.shape, STRING)
    flat = encoded.reshape(-1)
    for index, item in enumerate(array.astype(object).reshape(-1)):
        flat[index] = _string(item)
    return encoded


def _string(item: object) -> bytes:
    if isinstance(item, str):
        try:
            return str.encode(item)
        except UnicodeEncodeError:
            raise InvalidArgument(
                f"The string {shown(item)} has a lone surrogate, which UTF-8 cannot represent. Pass bytes."
            ) from None
    if isinstance(item, bytes | bytearray):
        return bytes(item)
    raise InvalidArgument(
        f"A string tensor must contain str or bytes, not {type(item).__name__}. Numbers need a numeric dtype."
    )


def little_endian(array: Array) -> Array:
    """Return the array in little-endian byte order, which all codecs use. An array in another order is copied."""
    # Supported machines are little-endian, so the native order needs no conversion.
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("<"))


def check_size(arrays: Mapping[str, Array]) -> None:
    """Raise InvalidArgument if the arrays need more than 2 GiB, protobuf's limit, before anything copies them."""
    size_bytes = sum([array.nbytes for array in arrays.values()])
    if size_bytes > _MAX_MESSAGE_BYTES:
        raise InvalidArgument(
            f"The inputs have {size_bytes:,} bytes, but a request has at most {_MAX_MESSAGE_BYTES:,}. Send fewer rows "
            "in each request, with max_batch_size."
        )
