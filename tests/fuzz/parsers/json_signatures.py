"""Signatures that the first byte of an input selects, for parsers that need one."""

from collections.abc import Mapping

import ml_dtypes
import numpy as np

from tpuserve_server.core.terms.types import Signature, TensorSpec

_DTYPES: Mapping[str, "np.dtype[np.generic]"] = {
    "f": np.dtype(np.float32),
    "d": np.dtype(np.float64),
    "h": np.dtype(np.float16),
    "b": np.dtype(ml_dtypes.bfloat16),
    "i": np.dtype(np.int32),
    "l": np.dtype(np.int64),
    "u": np.dtype(np.uint64),
    "c": np.dtype(np.int8),
    "t": np.dtype(np.bool_),
    "s": np.dtype(np.object_),
    "z": np.dtype(np.complex64),
}


def _signature(inputs: Mapping[str, str], ragged: bool = False) -> Signature:
    specs = {name: TensorSpec(name, _DTYPES[kind], None) for name, kind in inputs.items()}
    return Signature("serving_default", specs, {}, ragged_inputs={"x": ("x_splits",)} if ragged else {})


# By the first byte of an input, so that corpus files are readable.
SIGNATURES: Mapping[bytes, Signature] = {
    **{kind.encode(): _signature({"x": kind}) for kind in _DTYPES},
    b"2": _signature({"x": "f", "y": "l"}),
    b"3": _signature({"x": "s", "y": "t"}),
    b"r": _signature({"x": "f", "x_splits": "l"}, ragged=True),
    b"0": _signature({}),
}
_IN_ORDER = tuple(SIGNATURES.values())


def split(data: bytes) -> tuple[Signature, bytes]:
    """Return the signature of an input and the rest of it. Any first byte selects one."""
    first = data[:1]
    return SIGNATURES.get(first) or _IN_ORDER[ord(first or b"0") % len(_IN_ORDER)], data[1:]
