"""TensorProto to numpy and back, without a Python object per number.

Requests carry `tensor_content`. Responses may carry that or the typed fields (`float_val`, …), which TensorFlow Serving
uses by default: both are read as whole buffers.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from google.protobuf.unknown_fields import UnknownFieldSet

from tpuserve_client import dtypes
from tpuserve_client._proto import serving_pb2
from tpuserve_client.dtypes import STRING, Array, DType
from tpuserve_client.errors import Internal, InvalidArgument
from tpuserve_client.varint import decode_varints, split_strings
from tpuserve_formats.dtypes import BY_DTYPE

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


def to_proto(array: Array) -> serving_pb2.TensorProto:
    """An array from `as_array` as a TensorProto: `tensor_content` (little-endian, row by row), or `string_val`."""
    proto = serving_pb2.TensorProto()
    proto.dtype = dtypes.to_wire(array.dtype)  # type: ignore[assignment]  # the enum's number
    proto.tensor_shape.SetInParent()  # a scalar's shape is there, and empty
    for size in array.shape:
        proto.tensor_shape.dim.add().size = size
    if array.dtype == STRING:
        proto.string_val.extend(array.reshape(-1).tolist())
    else:
        proto.tensor_content = _little_endian(array).tobytes()
    return proto


def _little_endian(array: Array) -> Array:
    # A no-op on little-endian machines' own arrays; ml_dtypes know no byte order but the machine's.
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def from_proto(proto: serving_pb2.TensorProto) -> Array:
    """The array in a TensorProto. Fewer values than elements repeat the last one, as everywhere in TensorFlow.

    Numbers are a read-only view of the message's bytes where the wire form is numpy's (floats, complex, anything in
    `tensor_content`). Strings come as dtype object with `bytes` elements. Internal if the message contradicts itself.
    """
    dtype = dtypes.from_wire(proto.dtype)
    if dtype is None:
        raise Internal(f"The server sent a tensor of type {proto.dtype}, which has no numpy form.")
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    if proto.tensor_shape.unknown_rank or any(size < 0 for size in shape):
        raise Internal(f"The server sent a tensor without a full shape: {list(shape)}.")
    try:
        values = _content(proto, dtype, shape) if proto.tensor_content else _typed_values(proto, dtype)
        return _fill(values, dtype, shape)
    except ValueError as error:
        raise Internal(
            f"The server sent a {dtypes.describe(dtype)}{list(shape)} tensor that is broken: {error}"
        ) from None


def _content(proto: serving_pb2.TensorProto, dtype: DType, shape: tuple[int, ...]) -> Array:
    count = math.prod(shape)
    if dtype == STRING:
        return _strings(split_strings(proto.tensor_content, count))
    values = _view(proto.tensor_content, dtype)
    if values.size != count:
        raise ValueError(f"{count} values expected, {values.size} came")
    return values


def _fill(values: Array, dtype: DType, shape: tuple[int, ...]) -> Array:
    count = math.prod(shape)
    if values.size > count:
        raise ValueError(f"{count} values expected, {values.size} came")
    if values.size < count:
        last = values[-1] if values.size else (b"" if dtype == STRING else 0)
        values = np.concatenate([values, np.full(count - values.size, last, dtype)])
    return values.reshape(shape)


def _view(raw: bytes, dtype: DType) -> Array:
    return np.frombuffer(raw, dtype.newbyteorder("<"))


def _strings(items: list[bytes]) -> Array:
    array = np.empty(len(items), STRING)
    array[:] = items
    return array


def _fixed(raw: bytes, dtype: DType) -> Array:
    return _view(raw, dtype)


def _integers(raw: bytes, dtype: DType) -> Array:
    return decode_varints(raw).astype(dtype)  # wraps: the low bits are the value


def _bits(raw: bytes, dtype: DType) -> Array:
    return decode_varints(raw).astype(np.uint16).view(dtype)


# How to read the bytes of a field that holds values (tensorflow/core/framework/tensor.proto).
_Read = Callable[[bytes, DType], Array]
_READERS: dict[str, _Read] = {
    "float_val": _fixed,
    "double_val": _fixed,
    "scomplex_val": _fixed,
    "dcomplex_val": _fixed,
    "half_val": _bits,
    "float8_val": _fixed,
    "bool_val": _integers,
    "int_val": _integers,
    "int64_val": _integers,
    "uint32_val": _integers,
    "uint64_val": _integers,
}


def _typed_values(proto: serving_pb2.TensorProto, dtype: DType) -> Array:
    if dtype == STRING:
        return _strings(list(proto.string_val))
    field = BY_DTYPE[dtype].field
    read = _READERS[field]
    pieces = getattr(proto, field)
    if field == "float8_val":
        return read(pieces, dtype)
    if not pieces:
        _refuse_unpacked(proto, field)
    return read(pieces[0] if len(pieces) == 1 else b"".join(pieces), dtype)


def _refuse_unpacked(proto: serving_pb2.TensorProto, field: str) -> None:
    # Values written one by one are legal protobuf, though no known server writes them; read as bytes they are unknown
    # fields, and passing them over would turn them into zeros.
    number = proto.DESCRIPTOR.fields_by_name[field].number
    unknown: Iterable[Any] = UnknownFieldSet(proto)  # type: ignore[assignment]  # iterable, says its documentation
    if any(entry.field_number == number for entry in unknown):
        raise ValueError(f"{field} is not packed")
