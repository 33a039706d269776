"""Conversion between TensorFlow's element types and numpy dtypes, with the client's errors.

The table of types is in `tpuserve_formats`.
"""

from tpuserve_client.errors import InvalidArgument
from tpuserve_formats.dtypes import BY_DTYPE, BY_ENUM_NAME, STRING, WITH_QUANTIZED, Array, DType

__all__ = ["STRING", "Array", "DType", "describe", "from_name", "from_wire", "to_wire"]


def to_wire(dtype: DType) -> int:
    """Return the DataType number of a numpy dtype of either byte order. Raises InvalidArgument if none exists."""
    wire_type = BY_DTYPE.get(dtype) or BY_DTYPE.get(dtype.newbyteorder("="))
    if wire_type is None:
        raise InvalidArgument(f"Tensors do not support numpy's {dtype}.")
    return wire_type.number


def from_wire(number: int) -> DType | None:
    """Return the numpy dtype of a DataType number, or None for types without plain values (resource, variant)."""
    wire_type = WITH_QUANTIZED.get(number)
    return wire_type.dtype if wire_type else None


def from_name(name: str) -> DType | None:
    """Return the numpy dtype of a DataType name such as DT_FLOAT, as in REST bodies. Returns None like `from_wire`."""
    wire_type = BY_ENUM_NAME.get(name)
    return wire_type.dtype if wire_type else None


def describe(dtype: DType | None) -> str:
    """Return the name of a dtype for messages: float32, bfloat16, string."""
    if dtype is None:
        return "unknown"
    return "string" if dtype == STRING else dtype.name
