"""ModelInferRequest and ModelInferResponse: converts bytes to the value types and back."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError

from tpuserve_formats.dtypes import DType
from tpuserve_formats.errors import FormatError
from tpuserve_formats.messages.oip import ModelInferRequest
from tpuserve_formats.oip.datatypes import datatype_of
from tpuserve_formats.oip.raw_tensor import Buffer, encode_raw
from tpuserve_formats.varint import varint
from tpuserve_server.core.errors import InvalidArgument, Unimplemented
from tpuserve_server.core.types import ModelSpec, ServableId
from tpuserve_server.wire.oip.inference import (
    InferenceRequest,
    InferenceResult,
    InputTensor,
    RequestedOutput,
    TensorData,
)
from tpuserve_server.wire.oip.model_spec import parse_model_spec
from tpuserve_server.wire.oip.parameters import (
    EMPTY_FINAL_RESPONSE,
    NO_PARAMETERS,
    RequestParameters,
    read_parameters,
)

if TYPE_CHECKING:
    from tpuserve_formats.messages.oip import InferParameter

# Types of the parameters that Triton reads (server, infer_handler.cc, SetInferenceRequestMetadata).
_PARAMETER_TYPES: Final = {
    "sequence_id": ("int64_param", "string_param"),
    "sequence_start": ("bool_param",),
    "sequence_end": ("bool_param",),
    "priority": ("int64_param", "uint64_param"),
    "timeout": ("int64_param",),
    "signature_name": ("string_param",),
    EMPTY_FINAL_RESPONSE: ("bool_param",),
}
# Only REST has it; over gRPC it is a parameter like any unknown one.
_REST_ONLY: Final = "binary_data_output"


def parse_infer_request(body: bytes) -> ModelInferRequest:
    """Parse a ModelInferRequest. Raises InvalidArgument if `body` is malformed."""
    try:
        return ModelInferRequest.FromString(body)
    except DecodeError:
        raise InvalidArgument("Malformed ModelInferRequest") from None


def read_infer_spec(proto: ModelInferRequest, request: InferenceRequest) -> ModelSpec:
    """Return the model, version and signature of a request. Raises InvalidArgument for an invalid version."""
    return parse_model_spec(proto.model_name, proto.model_version, request.parameters.signature_name)


def read_infer_request(proto: ModelInferRequest, size_bytes: int) -> InferenceRequest:
    """Return the request with its tensors not decoded.

    Raises:
        InvalidArgument: raw and typed contents in one request, a wrong number of raw contents, or a wrong parameter.
    """
    parameters = NO_PARAMETERS
    if proto.parameters:
        parameters = _read_parameters(proto.parameters)
    return InferenceRequest(
        proto.id,
        _inputs(proto),
        [_output(output) for output in proto.outputs] if proto.outputs else (),
        parameters,
        is_binary=True,
        size_bytes=size_bytes,
    )


def encode_infer_response(result: InferenceResult) -> bytes:
    """Serialize a ModelInferResponse directly, with raw contents: cheaper than filling messages.

    Raises:
        Unimplemented: the protocol has no datatype for the dtype of an output.
    """
    heads: list[bytes] = [_head(result.servable)]
    if result.id:
        text = result.id.encode()
        heads += (b"\x1a", varint(len(text)), text)
    raw: list[Buffer] = []
    for name, array in result.outputs.items():
        heads.append(_output_head(name, array.dtype, array.shape))
        try:
            contents = encode_raw(array)
        except FormatError as error:
            raise InvalidArgument(f"output '{name}': {error}") from None
        # raw_output_contents = 6
        raw += (b"\x32", varint(len(contents)), contents)
    return b"".join((*heads, *raw))


def _inputs(proto: ModelInferRequest) -> Sequence[InputTensor]:
    raw = proto.raw_input_contents
    if not raw:
        return [_input(tensor, tensor.contents) for tensor in proto.inputs]
    inputs = proto.inputs
    if len(raw) != len(inputs):
        _refuse_count(proto)
    for tensor in inputs:
        if tensor.HasField("contents"):
            _refuse_mixed(proto, tensor.name)
    return [_input(tensor, contents) for tensor, contents in zip(inputs, raw, strict=True)]


def _input(tensor: ModelInferRequest.InferInputTensor, data: TensorData) -> InputTensor:
    return InputTensor(tensor.name, tensor.datatype, tensor.shape, data)


def _refuse_mixed(proto: ModelInferRequest, name: str) -> None:
    raise InvalidArgument(
        f"contents field must not be specified when using raw_input_contents for '{name}' for model "
        f"'{proto.model_name}'"
    )


def _refuse_count(proto: ModelInferRequest) -> None:
    inputs, raw = proto.inputs, proto.raw_input_contents
    for tensor in inputs:
        if tensor.HasField("contents"):
            _refuse_mixed(proto, tensor.name)
    if len(raw) < len(inputs):
        raise InvalidArgument(
            f"unable to find data for input tensor '{inputs[len(raw)].name}' for model '{proto.model_name}' in request."
        )
    raise InvalidArgument(
        f"expected {len(inputs)} raw_input_contents for the inputs of model '{proto.model_name}', got {len(raw)}"
    )


def _output(output: ModelInferRequest.InferRequestedOutputTensor) -> RequestedOutput:
    if "classification" not in output.parameters:
        return RequestedOutput(output.name)
    parameter = output.parameters["classification"]
    if parameter.WhichOneof("parameter_choice") != "int64_param":
        raise InvalidArgument("invalid value type for 'classification' parameter, expected int64_param")
    if parameter.int64_param <= 0:
        raise InvalidArgument(
            f"invalid value for 'classification' parameter, expected > 0, got {parameter.int64_param}"
        )
    return RequestedOutput(output.name, parameter.int64_param)


def _read_parameters(parameters: "Mapping[str, InferParameter]") -> RequestParameters:
    values: dict[str, object] = {}
    for name, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        types = _PARAMETER_TYPES.get(name)
        if types is not None and choice not in types:
            raise InvalidArgument(f"invalid value type for '{name}' parameter, expected {' or '.join(types)}.")
        value: Any = None if choice is None else getattr(parameter, choice)
        if name in ("priority", "timeout") and value < 0:
            raise InvalidArgument(f"invalid value for '{name}', expected value >= 0.")
        if name != _REST_ONLY:
            values[name] = value
    return read_parameters(values)


@lru_cache(maxsize=1024)
def _head(servable: ServableId) -> bytes:
    """Encode model_name = 1 and model_version = 2."""
    name, number = servable.name.encode(), str(servable.version).encode()
    return b"".join((b"\x0a", varint(len(name)), name, b"\x12", varint(len(number)), number))


@lru_cache(maxsize=4096)
def _output_head(name: str, dtype: DType, shape: tuple[int, ...]) -> bytes:
    """Encode an output without contents: outputs = 5: {name = 1, datatype = 2, shape = 3}."""
    try:
        datatype = datatype_of(dtype).encode()
    except FormatError as error:
        raise Unimplemented(f"output '{name}': {error}") from None
    text, sizes = name.encode(), b"".join(map(varint, shape))
    tensor = b"".join((b"\x0a", varint(len(text)), text, b"\x12", varint(len(datatype)), datatype))
    if sizes:
        tensor = b"".join((tensor, b"\x1a", varint(len(sizes)), sizes))
    return b"".join((b"\x2a", varint(len(tensor)), tensor))
