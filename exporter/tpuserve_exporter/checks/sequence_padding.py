"""Pads sequences to a bucket's length as servers do, with the value that the model ignores."""

import numpy as np

from tpuserve_exporter.errors import SamplesUnfit
from tpuserve_exporter.options.export_options import PadValue
from tpuserve_exporter.terms.signature import Array, TensorSpec


def pad_sequence(name: str, spec: TensorSpec, value: Array, bucket: int, pad_value: PadValue | None) -> Array:
    """Pad each free dimension at its end with `said`, by default zero or an empty string. Raises SamplesUnfit."""
    shape = tuple(bucket if axis in spec.free_axes else size for axis, size in enumerate(value.shape))
    if spec.dtype == "string":
        padding: object = pad_value.encode() if isinstance(pad_value, str) else b""
        fits = pad_value is None or isinstance(pad_value, str)
    else:
        padding = pad_value or 0
        fits = not isinstance(pad_value, str) and _fits(pad_value or 0, value.dtype)
    if not fits:
        raise SamplesUnfit(f"cannot pad input {name!r} ({spec}) with {pad_value!r}")
    padded = np.full(shape, padding, value.dtype)
    padded[tuple(slice(size) for size in value.shape)] = value
    return padded


def _fits(value: float, dtype: "np.dtype[np.generic]") -> bool:
    """Return whether an integer dtype holds the value exactly. Floating-point dtypes may round."""
    if dtype.kind not in "biu":
        return True
    return float(value).is_integer() and bool(np.asarray(int(value)).astype(dtype) == value)
