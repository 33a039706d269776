"""Datatypes of the Open Inference Protocol and their numpy dtypes.

Source: "Tensor Data Types" of the protocol (kserve/open-inference-protocol, specification), and Triton's BF16.
"""

from typing import Final

import ml_dtypes
import numpy as np

from tpuserve_formats.dtypes import STRING, DType
from tpuserve_formats.errors import FormatError

# Datatype of string tensors, whose elements are `bytes`.
BYTES: Final = "BYTES"

_BY_NAME: Final[dict[str, DType]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    BYTES: STRING,
}
_BY_DTYPE: Final[dict[DType, str]] = {dtype: name for name, dtype in _BY_NAME.items()}

DATATYPES: Final = tuple(_BY_NAME)


def dtype_of(datatype: str) -> DType:
    """Return the numpy dtype of a datatype such as `FP32`. Raises FormatError for an unknown one."""
    dtype = _BY_NAME.get(datatype)
    if dtype is None:
        raise FormatError(f"datatype '{datatype[:32]}' is unknown, expected one of {', '.join(DATATYPES)}")
    return dtype


def datatype_of(dtype: DType) -> str:
    """Return the datatype of a numpy dtype. Raises FormatError if the protocol has none, as for complex numbers."""
    datatype = _BY_DTYPE.get(dtype)
    if datatype is None:
        raise FormatError(f"dtype {dtype} has no datatype in the Open Inference Protocol")
    return datatype
