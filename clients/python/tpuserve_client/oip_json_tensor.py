"""JSON data of the Open Inference Protocol's tensors as arrays. The client itself sends binary data."""

from typing import Final

import numpy as np

from tpuserve_client.dtypes import STRING, Array, DType, describe
from tpuserve_formats.oip.datatypes import dtype_of
from tpuserve_formats.oip.raw_tensor import checked_count, decode_raw

# Types of the JSON values that each kind of numpy dtype accepts. V is the kind of bfloat16.
_TYPES: Final[dict[str, set[type]]] = {
    "b": {bool},
    "i": {int},
    "u": {int},
    "f": {int, float},
    "V": {int, float},
    "O": {str},
}


def from_json(data: object, datatype: str, shape: tuple[int, ...]) -> Array:
    """Convert an output's `data`: values in row-major order, in nested lists or in one list.

    Raises ValueError if the data does not fit the datatype or the shape.
    """
    dtype = dtype_of(datatype)
    count = checked_count(shape)
    if data is None:
        raise ValueError("it has neither JSON data nor binary data")
    if not count:  # the content does not matter, as in Triton
        return decode_raw(datatype, shape, b"")
    values = np.array(data, object).reshape(-1).tolist()  # numpy would pad texts to the length of the longest
    if len(values) != count:
        raise ValueError(f"{datatype} of shape {list(shape)} needs {count} values, but the data has {len(values)}")
    if others := set(map(type, values)) - _TYPES[dtype.kind]:
        names = ", ".join(sorted(other.__name__ for other in others))
        raise ValueError(f"the data of a {describe(dtype)} tensor has values of JSON type {names}")
    return _converted(values, dtype).reshape(shape)


def _converted(values: list[object], dtype: DType) -> Array:
    if dtype == STRING:
        strings = np.empty(len(values), STRING)
        strings[:] = [str(value).encode("utf-8", "surrogateescape") for value in values]  # reverses parse_object
        return strings
    try:
        with np.errstate(over="ignore"):  # a float out of range becomes infinite
            return np.array(values, dtype)
    except OverflowError as error:
        raise ValueError(f"the data has a value that {describe(dtype)} cannot represent: {error}") from None
