"""Messages of the Open Inference Protocol over gRPC: bytes in, bytes out, without a channel."""

from functools import lru_cache
from typing import Any, Final

from tpuserve_client.dtypes import Array
from tpuserve_client.errors import Internal
from tpuserve_client.exchange import Exchange, PredictCall, Reply
from tpuserve_client.model import Metadata, ModelSpec, Prediction, Signature, VersionStatus
from tpuserve_client.oip_wire import (
    NOT_READY,
    OipWire,
    TensorMetadata,
    input_tensors,
    metadata,
    prediction,
    refuse_labels,
    request_parameters,
    statuses,
    version_text,
)
from tpuserve_client.proto_reply import parse_into
from tpuserve_formats.counted import counted
from tpuserve_formats.errors import FormatError

# The import creates the classes, before the first call begins.
from tpuserve_formats.messages.oip import (
    ModelInferRequest,
    ModelInferResponse,
    ModelMetadataRequest,
    ModelMetadataResponse,
    ModelReadyRequest,
    ModelReadyResponse,
    ServerReadyRequest,
    ServerReadyResponse,
)
from tpuserve_formats.oip.raw_tensor import Buffer, decode_raw
from tpuserve_formats.oip.typed_contents import decode_typed, has_typed_contents
from tpuserve_formats.varint import varint

_SERVICE: Final = "/inference.GRPCInferenceService"
_INFER: Final = f"{_SERVICE}/ModelInfer"
_METADATA: Final = f"{_SERVICE}/ModelMetadata"
_READY: Final = f"{_SERVICE}/ServerReady"
_MODEL_READY: Final = f"{_SERVICE}/ModelReady"
# Tag of ModelInferRequest.raw_input_contents, field 7: a length and bytes follow.
_RAW_INPUT: Final = b"\x3a"


class OipGrpcWire(OipWire):
    """Wire over protobuf. Inputs are raw contents. Outputs may also be typed contents."""

    def predict(self, call: PredictCall) -> Exchange:
        tensors = input_tensors(call)
        described = tuple((tensor.name, tensor.datatype, tensor.shape) for tensor in tensors)
        parts: list[Buffer] = [_head(call.spec, tuple(request_parameters(call).items()), call.output_filter, described)]
        # Concatenated messages parse as one message. This saves a copy of the inputs into one message.
        for tensor in tensors:
            parts += (_RAW_INPUT, varint(len(tensor.data)), tensor.data)
        return Exchange(_INFER, b"".join(parts))

    def read_prediction(self, reply: Reply, call: PredictCall, signature: Signature | None) -> Prediction:
        response = ModelInferResponse()
        parse_into(response, reply.body)
        return prediction(call, _outputs(response, call.spec), response.model_name, response.model_version)

    def metadata(self, spec: ModelSpec, *, with_labels: bool = False) -> Exchange:
        refuse_labels(with_labels=with_labels)
        request = ModelMetadataRequest(name=spec.name, version=version_text(spec))
        return Exchange(_METADATA, request.SerializeToString())

    def read_metadata(self, reply: Reply, spec: ModelSpec) -> Metadata:
        response = ModelMetadataResponse()
        parse_into(response, reply.body)
        return metadata(spec, response.name, response.versions, _tensors(response.inputs), _tensors(response.outputs))

    def status(self, spec: ModelSpec) -> Exchange:
        return self.metadata(spec)

    def read_status(self, reply: Reply) -> tuple[VersionStatus, ...]:
        response = ModelMetadataResponse()
        parse_into(response, reply.body)
        return statuses(response.versions)

    def ready(self) -> Exchange:
        return Exchange(_READY, ServerReadyRequest().SerializeToString())

    def read_ready(self, reply: Reply) -> bool:
        response = ServerReadyResponse()
        parse_into(response, reply.body)
        return bool(response.ready)

    def model_ready(self, spec: ModelSpec) -> Exchange:
        return Exchange(_MODEL_READY, ModelReadyRequest(name=spec.name, version=version_text(spec)).SerializeToString())

    def read_model_ready(self, reply: Reply) -> str | None:
        response = ModelReadyResponse()
        parse_into(response, reply.body)
        return None if response.ready else NOT_READY


@lru_cache(maxsize=1024)
def _head(
    spec: ModelSpec,
    parameters: tuple[tuple[str, str | int], ...],
    output_filter: tuple[str, ...],
    tensors: tuple[TensorMetadata, ...],
) -> bytes:
    """Return a serialized ModelInferRequest without raw contents."""
    request = ModelInferRequest(model_name=spec.name, model_version=version_text(spec))
    for key, value in parameters:
        if isinstance(value, str):
            request.parameters[key].string_param = value
        else:
            request.parameters[key].int64_param = value
    for name, datatype, shape in tensors:
        request.inputs.add(name=name, datatype=datatype, shape=shape)
    for name in output_filter:
        request.outputs.add(name=name)
    return bytes(request.SerializeToString())


def _outputs(response: ModelInferResponse, spec: ModelSpec) -> dict[str, Array]:
    """Return the outputs: views of the message's bytes if they are raw contents. Raises Internal."""
    raw = response.raw_output_contents
    if raw and len(raw) != len(response.outputs):
        raise Internal(
            f"Model {spec} returned {counted(len(response.outputs), 'output')}, but {counted(len(raw), 'raw content')}."
        )
    outputs: dict[str, Array] = {}
    for index, tensor in enumerate(response.outputs):
        if tensor.name in outputs:
            raise Internal(f"Model {spec} returned output {tensor.name} twice.")
        if raw and has_typed_contents(tensor):
            raise Internal(f"Model {spec} returned output {tensor.name} with raw and with typed contents.")
        try:
            outputs[tensor.name] = _array(tensor, raw[index] if raw else None)
        except FormatError as error:
            raise Internal(f"Model {spec} returned output {tensor.name}, which is invalid: {error}.") from None
    return outputs


def _array(tensor: Any, raw: bytes | None) -> Array:  # noqa: ANN401  an InferOutputTensor
    shape = tuple(tensor.shape)
    return (
        decode_typed(tensor.datatype, shape, tensor.contents)
        if raw is None
        else decode_raw(tensor.datatype, shape, raw)
    )


def _tensors(protos: Any) -> list[TensorMetadata]:  # noqa: ANN401  repeated TensorMetadata
    return [(proto.name, proto.datatype, tuple(proto.shape)) for proto in protos]
