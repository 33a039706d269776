"""TensorFlow's element types and numpy's: the one table between them."""

from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np

from tpuserve_client._proto import serving_pb2
from tpuserve_client.errors import InvalidArgument

# Any dtype numpy holds, bfloat16 and float8 (ml_dtypes) and object (strings, as bytes) among them.
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
DType: TypeAlias = np.dtype[Any]

# How strings are held: an array of dtype object whose elements are `bytes`.
STRING: Final = np.dtype(object)

_NUMPY_TO_WIRE: dict[DType, "serving_pb2.DataType"] = {
    np.dtype(np.float32): serving_pb2.DT_FLOAT,
    np.dtype(np.float64): serving_pb2.DT_DOUBLE,
    np.dtype(np.int32): serving_pb2.DT_INT32,
    np.dtype(np.uint8): serving_pb2.DT_UINT8,
    np.dtype(np.int16): serving_pb2.DT_INT16,
    np.dtype(np.int8): serving_pb2.DT_INT8,
    STRING: serving_pb2.DT_STRING,
    np.dtype(np.complex64): serving_pb2.DT_COMPLEX64,
    np.dtype(np.int64): serving_pb2.DT_INT64,
    np.dtype(np.bool_): serving_pb2.DT_BOOL,
    np.dtype(ml_dtypes.bfloat16): serving_pb2.DT_BFLOAT16,
    np.dtype(np.uint16): serving_pb2.DT_UINT16,
    np.dtype(np.complex128): serving_pb2.DT_COMPLEX128,
    np.dtype(np.float16): serving_pb2.DT_HALF,
    np.dtype(np.uint32): serving_pb2.DT_UINT32,
    np.dtype(np.uint64): serving_pb2.DT_UINT64,
    np.dtype(ml_dtypes.float8_e5m2): serving_pb2.DT_FLOAT8_E5M2,
    np.dtype(ml_dtypes.float8_e4m3fn): serving_pb2.DT_FLOAT8_E4M3FN,
}

_WIRE_TO_NUMPY: dict[int, DType] = {
    **{wire: dtype for dtype, wire in _NUMPY_TO_WIRE.items()},
    # Quantized values are their integers; scale and zero point are the model's business.
    serving_pb2.DT_QINT8: np.dtype(np.int8),
    serving_pb2.DT_QUINT8: np.dtype(np.uint8),
    serving_pb2.DT_QINT16: np.dtype(np.int16),
    serving_pb2.DT_QUINT16: np.dtype(np.uint16),
    serving_pb2.DT_QINT32: np.dtype(np.int32),
}

_NAME_TO_WIRE: dict[str, int] = {
    value.name: value.number for value in serving_pb2.DESCRIPTOR.enum_types_by_name["DataType"].values
}


def to_wire(dtype: DType) -> "serving_pb2.DataType":
    """The DataType number of a numpy dtype, of either byte order. InvalidArgument if TensorFlow has none for it."""
    try:
        return _NUMPY_TO_WIRE[dtype.newbyteorder("=")]
    except KeyError:
        raise InvalidArgument(f"No tensor can hold numpy's {dtype}.") from None


def from_wire(number: int) -> DType | None:
    """The numpy dtype of a DataType number; None for those that carry no plain values (resource, variant, unknown)."""
    return _WIRE_TO_NUMPY.get(number)


def from_name(name: str) -> DType | None:
    """The numpy dtype of a DataType name such as DT_FLOAT, as REST writes it; None as for `from_wire`."""
    return from_wire(_NAME_TO_WIRE.get(name, serving_pb2.DT_INVALID))


def describe(dtype: DType | None) -> str:
    """A dtype as people call it: float32, bfloat16, string."""
    if dtype is None:
        return "unknown"
    return "string" if dtype == STRING else dtype.name
