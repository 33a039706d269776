"""Input tensors of a request to arrays, checked against a signature."""

from collections.abc import Sequence

from tpuserve_formats.dtypes import STRING, DType
from tpuserve_formats.errors import FormatError
from tpuserve_formats.oip.raw_tensor import Buffer, decode_raw
from tpuserve_formats.oip.typed_contents import decode_typed
from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.core.types import Array, Signature
from tpuserve_server.wire.oip.checks import Subject, check_input, check_names, check_raw_size
from tpuserve_server.wire.oip.explain import explain_strings, explain_typed
from tpuserve_server.wire.oip.inference import InferenceRequest, InputTensor
from tpuserve_server.wire.oip.raw_input import raw_input_tensor
from tpuserve_server.wire.oip.tensor_json import JsonData, decode_json


def decode_inputs(model: str, signature: Signature, request: InferenceRequest) -> dict[str, Array]:
    """Return the request's arrays by name. Raw contents become views of the request's bytes, except strings.

    Raises:
        InvalidArgument: the request does not match the signature, or its data do not match its shapes.
        Unimplemented: the protocol has no datatype for a dtype of the model.
    """
    subject = Subject(request.id, model)
    if request.raw_input is not None:
        tensor = raw_input_tensor(subject, signature, request.raw_input)
        return {tensor.name: _decode(subject, signature, tensor)}
    check_names(subject, signature, request)
    return {tensor.name: _decode(subject, signature, tensor) for tensor in request.inputs}


def _decode(subject: Subject, signature: Signature, tensor: InputTensor) -> Array:
    spec = signature.inputs[tensor.name]
    count = check_input(subject, spec, tensor)
    data = tensor.data
    if isinstance(data, JsonData):
        flat = decode_json(tensor.name, tensor.datatype, spec.dtype, count, data)
        return _reshaped(flat, tensor)
    try:
        if isinstance(data, bytes | memoryview):
            return _decode_raw(subject, tensor, spec.dtype, count, data)
        return decode_typed(tensor.datatype, tensor.shape, data)
    except FormatError as error:
        raise _explained(subject, tensor, count, error) from None


def _decode_raw(subject: Subject, tensor: InputTensor, dtype: DType, count: int, data: Buffer) -> Array:
    if dtype != STRING:
        check_raw_size(subject, tensor, dtype.itemsize, count, len(data))
    return decode_raw(tensor.datatype, tensor.shape, data)


def _reshaped(flat: Array, tensor: InputTensor) -> Array:
    try:
        return flat.reshape(tensor.shape)
    except ValueError:
        # numpy refuses an empty array with a huge shape.
        raise _impossible(tensor.name, tensor.shape) from None


def _impossible(name: str, shape: Sequence[int]) -> InvalidArgument:
    return InvalidArgument(f"invalid shape for input '{name}': shape {list(shape)} is too large")


def _explained(subject: Subject, tensor: InputTensor, count: int, error: FormatError) -> InvalidArgument:
    """Return Triton's error for data that do not match the shape, or the codec's if Triton has none."""
    data = tensor.data
    if isinstance(data, bytes | memoryview):
        text = explain_strings(subject, tensor.name, count, data) if tensor.datatype == "BYTES" else ""
    elif isinstance(data, JsonData):
        text = ""
    else:
        text = explain_typed(subject, tensor, count, data)
    return InvalidArgument(text or f"{subject.prefix}input '{tensor.name}' for model '{subject.model}': {error}")
