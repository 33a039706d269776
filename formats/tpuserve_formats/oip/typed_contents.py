"""InferTensorContents: the typed fields of a tensor over gRPC. FP16 and BF16 have no field, only raw contents.

Source: InferTensorContents in Triton's grpc_service.proto.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tpuserve_formats.dtypes import STRING, Array, DType
from tpuserve_formats.errors import FormatError
from tpuserve_formats.oip.datatypes import BYTES, dtype_of
from tpuserve_formats.oip.raw_tensor import checked_count

if TYPE_CHECKING:
    from tpuserve_formats.messages.oip import InferTensorContents, ModelInferRequest, ModelInferResponse

_FIELDS: Final = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}


# Fields that several datatypes share, with the dtype of their values.
_FIELD_DTYPES: Final[dict[str, DType]] = {"int_contents": np.dtype(np.int32), "uint_contents": np.dtype(np.uint32)}


def has_typed_contents(tensor: "ModelInferRequest.InferInputTensor | ModelInferResponse.InferOutputTensor") -> bool:
    """Return whether a tensor has typed contents. MLServer sends empty ones in addition to raw contents."""
    return tensor.contents.ByteSize() > 0


def decode_typed(datatype: str, shape: Sequence[int], contents: "InferTensorContents") -> Array:
    """Return the array in the datatype's field of `contents`.

    Raises:
        FormatError: the datatype is unknown or has no field, another field has values, the number of values differs
            from the shape, or a value exceeds the datatype's range.
    """
    dtype = dtype_of(datatype)
    field = _FIELDS.get(datatype)
    if field is None:
        raise FormatError(f"{datatype} has no typed contents; send raw_input_contents")
    count = checked_count(shape)
    for other, values in contents.ListFields():
        if other.name != field:
            raise FormatError(f"{datatype} is in {field}, but {other.name} has {len(values)} values")
    values = getattr(contents, field)
    if len(values) != count:
        raise FormatError(f"{datatype} of shape {list(shape)} needs {count} values, but {field} has {len(values)}")
    if dtype is STRING:
        strings = np.empty(count, STRING)
        strings[:] = values
        return strings.reshape(shape)
    return _narrowed(np.array(values, _FIELD_DTYPES.get(field, dtype)), datatype, dtype).reshape(shape)


def _narrowed(values: Array, datatype: str, dtype: DType) -> Array:
    """Return `values` as `dtype`. numpy would wrap values that are out of its range."""
    if values.dtype == dtype:
        return values
    limits = np.iinfo(dtype)
    if values.size and (values.min() < limits.min or values.max() > limits.max):
        raise FormatError(
            f"{datatype} has the value {_first_outside(values, limits)}, expected {limits.min} to {limits.max}"
        )
    return values.astype(dtype)


def _first_outside(values: Array, limits: "np.iinfo[Any]") -> int:
    return int(values[(values < limits.min) | (values > limits.max)][0])
