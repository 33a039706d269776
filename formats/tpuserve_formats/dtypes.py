"""TensorFlow's wire data types and their numpy dtypes. All conversions use this table."""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import ml_dtypes
import numpy as np

# Any numpy dtype, including bfloat16 and float8 (ml_dtypes) and object (strings as bytes).
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
DType: TypeAlias = np.dtype[Any]

# dtype of string arrays, whose elements are `bytes`.
STRING: Final = np.dtype(np.object_)


@dataclass(frozen=True, slots=True)
class WireType:
    """A DataType: its number and name in types.proto, its numpy dtype, and the TensorProto field of its values."""

    number: int
    name: str
    dtype: DType
    field: str

    @property
    def enum_name(self) -> str:
        """The name in the enum, as in REST bodies: DT_FLOAT."""
        return f"DT_{self.name.upper()}"


# Numbers: tensorflow/core/framework/types.proto. Names: DataTypeString. Fields: the comments in tensor.proto.
_TYPES = (
    WireType(1, "float", np.dtype(np.float32), "float_val"),
    WireType(2, "double", np.dtype(np.float64), "double_val"),
    WireType(3, "int32", np.dtype(np.int32), "int_val"),
    WireType(4, "uint8", np.dtype(np.uint8), "int_val"),
    WireType(5, "int16", np.dtype(np.int16), "int_val"),
    WireType(6, "int8", np.dtype(np.int8), "int_val"),
    WireType(7, "string", STRING, "string_val"),
    WireType(8, "complex64", np.dtype(np.complex64), "scomplex_val"),
    WireType(9, "int64", np.dtype(np.int64), "int64_val"),
    WireType(10, "bool", np.dtype(np.bool_), "bool_val"),
    WireType(14, "bfloat16", np.dtype(ml_dtypes.bfloat16), "half_val"),
    WireType(17, "uint16", np.dtype(np.uint16), "int_val"),
    WireType(18, "complex128", np.dtype(np.complex128), "dcomplex_val"),
    WireType(19, "half", np.dtype(np.float16), "half_val"),
    WireType(22, "uint32", np.dtype(np.uint32), "uint32_val"),
    WireType(23, "uint64", np.dtype(np.uint64), "uint64_val"),
    WireType(24, "float8_e5m2", np.dtype(ml_dtypes.float8_e5m2), "float8_val"),
    WireType(25, "float8_e4m3fn", np.dtype(ml_dtypes.float8_e4m3fn), "float8_val"),
    WireType(26, "float8_e4m3fnuz", np.dtype(ml_dtypes.float8_e4m3fnuz), "float8_val"),
    WireType(27, "float8_e4m3b11fnuz", np.dtype(ml_dtypes.float8_e4m3b11fnuz), "float8_val"),
    WireType(28, "float8_e5m2fnuz", np.dtype(ml_dtypes.float8_e5m2fnuz), "float8_val"),
)
# Quantized values are plain integers here: scale and zero point belong to the model. The server supports none of them.
_QUANTIZED = (
    WireType(11, "qint8", np.dtype(np.int8), "int_val"),
    WireType(12, "quint8", np.dtype(np.uint8), "int_val"),
    WireType(13, "qint32", np.dtype(np.int32), "int_val"),
    WireType(15, "qint16", np.dtype(np.int16), "int_val"),
    WireType(16, "quint16", np.dtype(np.uint16), "int_val"),
)
BY_NUMBER = {wire_type.number: wire_type for wire_type in _TYPES}
BY_DTYPE = {wire_type.dtype: wire_type for wire_type in _TYPES}
WITH_QUANTIZED = BY_NUMBER | {wire_type.number: wire_type for wire_type in _QUANTIZED}
BY_ENUM_NAME = {wire_type.enum_name: wire_type for wire_type in WITH_QUANTIZED.values()}


def type_name(dtype: DType) -> str:
    """Return TensorFlow's name of a dtype in messages (`float`, `half`, …), or numpy's name if there is none."""
    wire_type = BY_DTYPE.get(dtype)
    return wire_type.name if wire_type else str(dtype)
