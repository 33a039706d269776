"""Strategies for serialized PredictRequests: usual ones, and ones that few clients send."""

from typing import TypeAlias

import numpy as np
from hypothesis import strategies as st
from tensorflow_serving.apis import predict_pb2

from tpuserve_formats.dtypes import BY_NUMBER
from tpuserve_server.core.terms.types import Array

NUMBERS = [number for number, wire in BY_NUMBER.items() if wire.field != "string_val"]
Summary: TypeAlias = dict[str, tuple[np.dtype[np.generic], tuple[int, ...], bytes]]


def summary(inputs: dict[str, Array]) -> Summary:
    return {
        name: (array.dtype, array.shape, b"" if array.dtype.hasobject else array.tobytes())
        for name, array in inputs.items()
    }


@st.composite
def tensors(draw: st.DrawFn) -> bytes:
    """Draw a TensorProto: usual ones, and ones whose content does not fit, repeats, or has values elsewhere, too."""
    number = draw(st.sampled_from([*NUMBERS, 7, 0, 99]))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    wire = BY_NUMBER.get(number)
    size = int(np.prod(shape, dtype=int)) * (wire.dtype.itemsize if wire is not None else 4)
    kind = draw(st.sampled_from(["usual"] * 4 + ["odd size", "twice", "typed", "both"]))
    tensor = predict_pb2.PredictRequest().inputs["x"]
    tensor.dtype = number
    for each in shape:
        tensor.tensor_shape.dim.add(size=each)
    if kind != "typed":
        size += kind == "odd size"
        tensor.tensor_content = draw(st.binary(min_size=size, max_size=size))
    if kind in ("typed", "both"):
        tensor.float_val.extend(draw(st.lists(st.floats(width=32), max_size=4)))
    body = bytes(tensor.SerializeToString())
    return body + b"\x22\x02ab" if kind == "twice" else body


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Draw a serialized PredictRequest, possibly of concatenated parts, with unknown fields, or cut."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = draw(st.sampled_from(["m", "", "ö"]))
    if draw(st.booleans()):
        request.model_spec.version.value = draw(st.integers(-1, 300))
    elif draw(st.booleans()):
        request.model_spec.version_label = "stable"
    request.model_spec.signature_name = draw(st.sampled_from(["", "s"]))
    for name in draw(st.lists(st.sampled_from(["x", "y", ""]), unique=True, max_size=3)):
        request.inputs[name].MergeFromString(draw(tensors()))
    request.output_filter.extend(draw(st.lists(st.sampled_from(["y", "z"]), max_size=2)))
    body = bytes(request.SerializeToString())
    extra = draw(
        st.sampled_from([b"", b"", b"", body, b"\xf8\x7f\x01", b"\x12\x00", b"\x12\x03\x0a\x01x", b"\x0b\x0c"])
    )
    return body + extra
