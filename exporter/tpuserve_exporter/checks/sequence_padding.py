"""Padding sequences as servers pad them: to a bucket's length, with what the model takes for nothing."""

import numpy as np

from tpuserve_exporter.errors import SamplesUnfit
from tpuserve_exporter.options.export_options import PadValue
from tpuserve_exporter.signature import Array, TensorSpec


def pad_sequence(name: str, spec: TensorSpec, value: Array, bucket: int, said: PadValue | None) -> Array:
    """At each free dimension's end; with zero, or an empty string, where nothing is said. Raises SamplesUnfit."""
    shape = tuple(bucket if axis in spec.free_axes else size for axis, size in enumerate(value.shape))
    if spec.dtype == "string":
        padding: object = said.encode() if isinstance(said, str) else b""
        fits = said is None or isinstance(said, str)
    else:
        padding = said or 0
        fits = not isinstance(said, str) and _fits(said or 0, value.dtype)
    if not fits:
        raise SamplesUnfit(f"input {name!r} is {spec}: it cannot be padded with {said!r}")
    padded = np.full(shape, padding, value.dtype)
    padded[tuple(slice(size) for size in value.shape)] = value
    return padded


def _fits(value: float, dtype: "np.dtype[np.generic]") -> bool:
    """Whether integers hold it exactly; floating point rounds."""
    if dtype.kind not in "biu":
        return True
    return float(value).is_integer() and bool(np.asarray(int(value)).astype(dtype) == value)
