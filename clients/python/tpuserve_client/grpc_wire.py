"""TensorFlow Serving's gRPC messages: bytes in, bytes out, without a channel."""

from functools import lru_cache
from typing import ClassVar

from google.protobuf.wrappers_pb2 import StringValue

from tpuserve_client import dtypes, grpc_examples, tensor
from tpuserve_client.arrays import check_size
from tpuserve_client.dtypes import Array
from tpuserve_client.errors import Code, TpuserveError, Unavailable
from tpuserve_client.exchange import ExampleCall, Exchange, PredictCall, Reply
from tpuserve_client.model import (
    DEFAULT_SIGNATURE_NAME,
    Classifications,
    Metadata,
    ModelSpec,
    Prediction,
    Signature,
    State,
    TensorSpec,
    VersionStatus,
)
from tpuserve_client.proto_reply import parse_into
from tpuserve_client.readiness import obstacle
from tpuserve_formats.messages import official

_PREDICT = "/tensorflow.serving.PredictionService/Predict"
_METADATA = "/tensorflow.serving.PredictionService/GetModelMetadata"
_STATUS = "/tensorflow.serving.ModelService/GetModelStatus"
_HEALTH = "/grpc.health.v1.Health/Check"
_SIGNATURE_DEF = "signature_def"
# A metadata field of tpuserve: a StringValue with one class per line.
_LABELS = "tpuserve_labels"

# By number, because a newer server may send values that are unknown here.
_STATES: dict[int, State] = {state.value: state for state in State}
_CODES: dict[int, Code] = {code.value: code for code in Code}


class GrpcWire:
    """Wire over protobuf. A reply contains its version, its signature name and its dtypes."""

    needs_signature: ClassVar[bool] = False
    not_ready: ClassVar[tuple[type[TpuserveError], ...]] = (Unavailable,)

    def predict(self, call: PredictCall) -> Exchange:
        check_size(call.inputs)
        # Concatenated messages parse as one message. This saves a copy of the inputs into one message.
        parts = [_predict_head(call.spec, call.signature_name), tensor.encode_inputs(call.inputs)]
        if call.output_filter:
            parts.append(official.PredictRequest(output_filter=call.output_filter).SerializeToString())
        return Exchange(_PREDICT, b"".join(parts), headers=call.headers)

    def version(self, reply: Reply) -> int | None:
        return None

    def read_prediction(self, reply: Reply, call: PredictCall, signature: Signature | None) -> Prediction:
        response = official.PredictResponse()
        parse_into(response, reply.body)
        outputs, spec = response.outputs, response.model_spec
        return Prediction(
            {name: tensor.from_proto(outputs[name]) for name in sorted(outputs)},
            model=spec.name or call.spec.name,
            version=_version(spec),
            signature_name=spec.signature_name or call.signature_name or DEFAULT_SIGNATURE_NAME,
        )

    def metadata(self, spec: ModelSpec, *, with_labels: bool = False) -> Exchange:
        fields = [_SIGNATURE_DEF, *([_LABELS] if with_labels else [])]
        request = official.GetModelMetadataRequest(model_spec=_spec_proto(spec), metadata_field=fields)
        return Exchange(_METADATA, request.SerializeToString())

    def read_metadata(self, reply: Reply, spec: ModelSpec) -> Metadata:
        response = official.GetModelMetadataResponse()
        parse_into(response, reply.body)
        signatures = official.SignatureDefMap()
        parse_into(signatures, response.metadata[_SIGNATURE_DEF].value)
        return Metadata(
            model=response.model_spec.name or spec.name,
            version=_version(response.model_spec),
            signatures={name: _signature(name, proto) for name, proto in signatures.signature_def.items()},
            labels=_labels(response),
        )

    def status(self, spec: ModelSpec) -> Exchange:
        return Exchange(_STATUS, official.GetModelStatusRequest(model_spec=_spec_proto(spec)).SerializeToString())

    def read_status(self, reply: Reply) -> tuple[VersionStatus, ...]:
        response = official.GetModelStatusResponse()
        parse_into(response, reply.body)
        return tuple(_version_status(proto) for proto in response.model_version_status)

    def ready(self) -> Exchange:
        return Exchange(_HEALTH, official.HealthCheckRequest().SerializeToString())

    def read_ready(self, reply: Reply) -> bool:
        response = official.HealthCheckResponse()
        parse_into(response, reply.body)
        return bool(response.status == official.HealthCheckResponse.SERVING)

    def model_ready(self, spec: ModelSpec) -> Exchange:
        return self.status(spec)

    def read_model_ready(self, reply: Reply) -> str | None:
        return obstacle(self.read_status(reply))

    def classify(self, call: ExampleCall) -> Exchange:
        body = grpc_examples.encode_request(call, _spec_proto(call.spec))
        return Exchange(grpc_examples.CLASSIFY, body, headers=call.headers)

    def read_classifications(self, reply: Reply, call: ExampleCall) -> Classifications:
        response = official.ClassificationResponse()
        parse_into(response, reply.body)
        found = grpc_examples.classifications(response)
        call.check_count(len(found))
        return found

    def regress(self, call: ExampleCall) -> Exchange:
        body = grpc_examples.encode_request(call, _spec_proto(call.spec))
        return Exchange(grpc_examples.REGRESS, body, headers=call.headers)

    def read_regressions(self, reply: Reply, call: ExampleCall) -> Array:
        response = official.RegressionResponse()
        parse_into(response, reply.body)
        found = grpc_examples.regressions(response)
        call.check_count(len(found))
        return found


def _labels(response: official.GetModelMetadataResponse) -> tuple[str, ...]:
    if _LABELS not in response.metadata:
        return ()
    labels = StringValue()
    parse_into(labels, response.metadata[_LABELS].value)
    return tuple(labels.value.split("\n"))


@lru_cache(maxsize=1024)
def _predict_head(spec: ModelSpec, signature_name: str | None) -> bytes:
    """Return a serialized PredictRequest without inputs."""
    head = official.PredictRequest(model_spec=_spec_proto(spec))
    head.model_spec.signature_name = signature_name or ""
    return bytes(head.SerializeToString())


def _spec_proto(spec: ModelSpec) -> official.ModelSpec:
    proto = official.ModelSpec(name=spec.name)
    if spec.version is not None:
        proto.version.value = spec.version
    elif spec.label is not None:
        proto.version_label = spec.label
    return proto


def _version(spec: official.ModelSpec) -> int | None:
    return spec.version.value if spec.HasField("version") else None


def _signature(name: str, proto: official.SignatureDef) -> Signature:
    return Signature(
        name=name,
        inputs={key: _tensor_spec(key, info) for key, info in proto.inputs.items()},
        outputs={key: _tensor_spec(key, info) for key, info in proto.outputs.items()},
        method_name=proto.method_name,
    )


def _tensor_spec(name: str, info: official.TensorInfo) -> TensorSpec:
    shape = tuple(dim.size if dim.size >= 0 else None for dim in info.tensor_shape.dim)
    return TensorSpec(name, dtypes.from_wire(info.dtype), None if info.tensor_shape.unknown_rank else shape)


def _version_status(proto: official.ModelVersionStatus) -> VersionStatus:
    return VersionStatus(
        version=proto.version,
        state=_STATES.get(proto.state, State.UNKNOWN),
        error_code=_CODES.get(proto.status.error_code, Code.UNKNOWN),
        error=proto.status.error_message,
    )
