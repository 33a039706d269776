"""ModelInferRequest and ModelInferResponse: converts bytes to the value types and back."""

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from tpuserve_formats.dtypes import STRING, DType
from tpuserve_formats.errors import FormatError
from tpuserve_formats.messages.oip import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse
from tpuserve_formats.oip.datatypes import datatype_of
from tpuserve_formats.oip.raw_tensor import Buffer, encode_raw
from tpuserve_formats.oip.typed_contents import has_typed_contents
from tpuserve_formats.varint import read_varint, varint
from tpuserve_server.core.terms.errors import InvalidArgument, Unimplemented, shown
from tpuserve_server.core.terms.types import Body, ModelSpec, PredictResult, ServableId, Tensors
from tpuserve_server.wire.oip.inference import (
    EMPTY_FINAL_RESPONSE,
    NO_PARAMETERS,
    InferenceRequest,
    InferenceResult,
    InputTensor,
    RegionWindow,
    RequestedOutput,
    RequestParameters,
    TensorData,
    check_only_region,
    parse_model_spec,
    read_parameters,
    read_window,
)
from tpuserve_server.wire.proto_scan import delimited_fields, find_large

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpuserve_formats.messages.oip import InferParameter


# Tags of a ModelInferRequest's fields, all of which have a length. Longer heads are not cached.
_ID, _RAW_CONTENTS = 0x1A, 0x3A
_FIELDS: Final = frozenset({0x0A, 0x12, _ID, 0x22, 0x2A, 0x32, _RAW_CONTENTS})
MAX_CACHED_BYTES: Final = 1 << 10
_FEW_FIELDS: Final = 64


class SplitRequest(NamedTuple):
    """A request without its id and raw contents, which differ between requests."""

    head: bytes
    id: str
    raw: list[memoryview]


def split_request(body: Body) -> SplitRequest | None:
    """Split a serialized request, or return None if protobuf must parse it: it is unusual or malformed.

    Clients send the same head repeatedly, so it is parsed once. The raw contents are views: protobuf would copy them
    twice.
    """
    view = memoryview(body).toreadonly()
    position, end = 0, len(body)
    heads: list[memoryview] = []
    raw: list[memoryview] = []
    request_id = b""
    try:
        while position < end:
            tag, size = body[position], body[position + 1]
            start = position + 2
            if size > 0x7F:
                size, start = read_varint(body, position + 1)
            stop = start + size
            if stop > end or tag not in _FIELDS:
                return None
            if tag == _RAW_CONTENTS:
                raw.append(view[start:stop])
            elif tag == _ID:
                request_id = bytes(body[start:stop])
            else:
                heads.append(view[position:stop])
            position = stop
        return SplitRequest(b"".join(heads), request_id.decode(), raw)
    except (IndexError, FormatError, UnicodeDecodeError):
        return None


def find_raw_contents(head: bytes) -> int | None:
    """Return where the first large raw contents begin in a ModelInferRequest whose first bytes are `head`."""
    return find_large(head, (_RAW_CONTENTS >> 3,))


def is_split_quickly(body: Body) -> bool:
    """Return whether `parse_infer_request` reads `body` of any size in microseconds: raw contents, few fields."""
    try:
        delimited_fields(body, 0, len(body), _FEW_FIELDS)
    except FormatError:
        return False
    split = split_request(body)
    return split is not None and bool(split.raw) and len(split.head) <= MAX_CACHED_BYTES


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


class ParsedRequest(NamedTuple):
    """A request, and the model, version and signature that it names."""

    spec: ModelSpec
    request: InferenceRequest


def parse_infer_request(body: Body) -> ParsedRequest:
    """Parse a ModelInferRequest, and decode no tensor. Raw contents become views of `body`.

    Raises:
        InvalidArgument: `body` is malformed, has raw and typed contents, a wrong number of raw contents, or a wrong
            parameter.
    """
    split = split_request(body)
    if split is None or not split.raw:
        proto = _parse(body)
        head, request_id = _read_head(proto, has_raw=bool(proto.raw_input_contents)), proto.id
        data: Sequence[TensorData] = proto.raw_input_contents
        is_raw = bool(data)
        if not is_raw:
            data = [tensor.contents for tensor in proto.inputs]
    else:
        is_short = len(split.head) <= MAX_CACHED_BYTES
        head = _parse_head_cached(split.head) if is_short else _parse_head(split.head)
        request_id, data, is_raw = split.id, split.raw, True
    if is_raw and head.windows:
        data = _with_windows(head, data)
    if len(data) != len(head.tensors):
        raise _wrong_count(head, len(data))
    inputs = [InputTensor(*tensor, each) for tensor, each in zip(head.tensors, data, strict=True)]
    return ParsedRequest(
        head.spec,
        InferenceRequest(request_id, inputs, head.outputs, head.parameters, True, None, len(body), head.windows),
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
        if name in result.in_regions:
            # Clients find contents by the index of the output, so each output has an entry.
            raw.append(b"\x32\x00")
            continue
        try:
            contents = encode_raw(array)
        except FormatError as error:
            raise InvalidArgument(f"output '{name}': {error}") from None
        # raw_output_contents = 6
        raw += (b"\x32", varint(len(contents)), contents)
    return b"".join((*heads, *raw))


class InferTemplate:
    """The ModelInferResponses of one version whose outputs have the same names, dtypes and shapes.

    They differ only in their ids and in the bytes of their arrays, so that everything else is encoded once.
    """

    __slots__ = ("_head", "_outputs", "_tensors")

    def __init__(
        self, head: bytes, tensors: bytes, outputs: tuple[tuple[str, DType, tuple[int, ...], bytes], ...]
    ) -> None:
        """Create it with the bytes before the id, those after it, and the outputs with the bytes before their own."""
        self._head = head
        self._tensors = tensors
        self._outputs = outputs

    @classmethod
    def of(cls, result: PredictResult) -> "InferTemplate | None":
        """Return the template of a result, or None if other values may take another number of bytes."""
        tensors, outputs = [], []
        for name, array in result.outputs.items():
            if array.dtype == STRING or not array.size:
                return None
            tensors.append(_output_head(name, array.dtype, array.shape))
            outputs.append((name, array.dtype, array.shape, b"\x32" + varint(array.nbytes)))
        return cls(_head(result.servable), b"".join(tensors), tuple(outputs))

    def encode(self, outputs: Tensors, request_id: bytes) -> bytes | None:
        """Return the bytes of `encode_infer_response`, or None if the outputs are not those of the template."""
        if len(outputs) != len(self._outputs):
            return None
        parts = [self._head]
        if request_id:
            parts += (b"\x1a", varint(len(request_id)), request_id)
        parts.append(self._tensors)
        for (name, array), (expected_name, dtype, shape, head) in zip(outputs.items(), self._outputs, strict=True):
            if array.shape != shape or array.dtype != dtype or name != expected_name:
                return None
            parts += (head, array.tobytes())
        return b"".join(parts)


class _Head(NamedTuple):
    """A request without its id and data. `tensors` are names, datatypes and shapes.

    `windows` are those of InferenceRequest.
    """

    spec: ModelSpec
    tensors: tuple[tuple[str, str, tuple[int, ...]], ...]
    outputs: tuple[RequestedOutput, ...]
    parameters: RequestParameters
    windows: "Mapping[int, RegionWindow] | None"


def _parse_head(text: bytes) -> _Head:
    return _read_head(_parse(text), has_raw=True)


_parse_head_cached = lru_cache(maxsize=1024)(_parse_head)


def _parse(body: Body) -> ModelInferRequest:
    try:
        # Protobuf reads any buffer.
        return ModelInferRequest.FromString(body)  # type: ignore[arg-type]
    except DecodeError:
        raise InvalidArgument("Malformed ModelInferRequest") from None


def _read_head(proto: ModelInferRequest, *, has_raw: bool) -> _Head:
    parameters = _read_parameters(proto.parameters) if proto.parameters else NO_PARAMETERS
    if has_raw:
        for tensor in proto.inputs:
            if has_typed_contents(tensor):
                raise InvalidArgument(
                    "contents field must not be specified when using raw_input_contents for "
                    f"'{shown(tensor.name)}' for model '{shown(proto.model_name)}'"
                )
    windows = {
        index: window
        for index, tensor in enumerate(proto.inputs)
        if tensor.parameters and (window := _input_window(tensor)) is not None
    }
    outputs = tuple([_output(output) for output in proto.outputs])
    return _Head(
        parse_model_spec(proto.model_name, proto.model_version, parameters.signature_name),
        tuple([(shown(tensor.name), shown(tensor.datatype), tuple(tensor.shape)) for tensor in proto.inputs]),
        outputs,
        parameters,
        windows if windows or any(output.region is not None for output in outputs) else None,
    )


def _input_window(tensor: ModelInferRequest.InferInputTensor) -> RegionWindow | None:
    window = read_window(shown(tensor.name), tensor.parameters)
    if window is not None and has_typed_contents(tensor):
        raise InvalidArgument(
            f"unexpected 'content' provided when using shared memory for input tensor '{shown(tensor.name)}'"
        )
    return window


def _with_windows(head: _Head, data: "Sequence[TensorData]") -> "Sequence[TensorData]":
    """Return the raw contents of all inputs: empty ones for inputs in shared memory, for which clients send none."""
    windows = head.windows or {}
    if len(data) + len(windows) != len(head.tensors):
        raise _wrong_count(head, len(data))
    rest = iter(data)
    return [b"" if index in windows else next(rest) for index in range(len(head.tensors))]


def _wrong_count(head: _Head, got: int) -> InvalidArgument:
    model = head.spec.name
    tensors = [tensor for index, tensor in enumerate(head.tensors) if index not in (head.windows or {})]
    if got < len(tensors):
        return InvalidArgument(
            f"unable to find data for input tensor '{tensors[got][0]}' for model '{model}' in request."
        )
    return InvalidArgument(f"expected {len(tensors)} raw_input_contents for the inputs of model '{model}', got {got}")


def _output(output: ModelInferRequest.InferRequestedOutputTensor) -> RequestedOutput:
    name = shown(output.name)
    if not output.parameters:
        return RequestedOutput(name)
    region = read_window(name, output.parameters)
    if "classification" not in output.parameters:
        return RequestedOutput(name, region=region)
    if region is not None:
        check_only_region(name, ("classification",))
    parameter = output.parameters["classification"]
    if parameter.WhichOneof("parameter_choice") != "int64_param":
        raise InvalidArgument("invalid value type for 'classification' parameter, expected int64_param")
    if parameter.int64_param <= 0:
        raise InvalidArgument(
            f"invalid value for 'classification' parameter, expected > 0, got {parameter.int64_param}"
        )
    return RequestedOutput(name, parameter.int64_param)


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


_FINAL: Final = "triton_final_response"


def _final_parameter() -> bytes:
    response = ModelInferResponse()
    response.parameters[_FINAL].bool_param = True
    return response.SerializeToString()


# Every response is its request's last. Serialized messages one after the other are one message with the fields of both.
_IS_FINAL: Final = _final_parameter()


def encode_stream_response(response: bytes) -> bytes:
    """Return the stream's message with a serialized ModelInferResponse, marked as the last of its request."""
    # infer_response = 2
    return b"".join((b"\x12", varint(len(response) + len(_IS_FINAL)), response, _IS_FINAL))


def encode_stream_error(request: Body, message: str) -> bytes:
    """Return the stream's message for an error of a serialized request, with its id and model."""
    response = ModelStreamInferResponse(error_message=message)
    response.infer_response.MergeFromString(_IS_FINAL)
    try:
        proto = ModelInferRequest.FromString(request)  # type: ignore[arg-type]
    except DecodeError:
        return response.SerializeToString()
    response.infer_response.id = proto.id
    response.infer_response.model_name = proto.model_name
    response.infer_response.model_version = proto.model_version
    return response.SerializeToString()
