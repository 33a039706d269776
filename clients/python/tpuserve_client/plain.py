"""Conversion of outputs to plain Python values, which every JSON encoder takes."""

import base64
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np

from tpuserve_client.dtypes import STRING, Array
from tpuserve_client.errors import InvalidArgument
from tpuserve_client.names import shown

NonFinite: TypeAlias = Literal["null", "string", "float"]

_FORMS: Final = get_args(NonFinite)
# Names of proto3's JSON mapping (protobuf.dev/programming-guides/json).
_NAN: Final = "NaN"
_INFINITY: Final = "Infinity"
_NEGATIVE: Final = "-Infinity"


def plain_values(array: Array, non_finite: NonFinite = "null") -> Any:  # noqa: ANN401  lists of any depth
    """Convert an output to nested lists, or to a bare value if it has no dimensions.

    Numbers keep their exact values, and a complex number becomes [real, imaginary]. Bytes become a str if they are
    UTF-8, and {"b64": …} otherwise. `non_finite` is the form of NaN and infinities: None, "NaN" and "Infinity", or
    Python's floats. Raises InvalidArgument for any other form.
    """
    form: object = non_finite
    if not isinstance(form, str) or form not in _FORMS:
        raise InvalidArgument(f'non_finite must be "null", "string" or "float", not {shown(non_finite)}.')
    if array.dtype == STRING:
        return _texts(array).tolist()
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], axis=-1)
    elif array.dtype.kind == "V":  # bfloat16 and float8
        array = array.astype(np.float32)
    if non_finite != "float" and array.dtype.kind == "f":
        array = _finite(array, non_finite)
    return array.tolist()


def _texts(array: Array) -> Array:
    texts = np.empty(array.shape, object)
    flat = texts.reshape(-1)
    for index, item in enumerate(array.reshape(-1)):
        flat[index] = _text(item)
    return texts


def _text(item: bytes) -> str | dict[str, str]:
    try:
        return item.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(item).decode()}


def _finite(array: Array, non_finite: NonFinite) -> Array:
    other = ~np.isfinite(array)
    if not other.any():
        return array
    found = array[other]
    replaced = array.astype(object)
    # None, as JavaScript's JSON.stringify writes null.
    replaced[other] = None if non_finite == "null" else [_name(value) for value in found.tolist()]
    return replaced


def _name(value: float) -> str:
    return _NAN if value != value else _INFINITY if value > 0 else _NEGATIVE
