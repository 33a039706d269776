"""ModelSpec, GetModelStatus and GetModelMetadata as messages and as JSON.

The metadata has signatures as SignatureDef messages, and tpuserve's fields for labels and precision.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Struct
from google.protobuf.wrappers_pb2 import StringValue

from tpuserve_formats.dtypes import BY_DTYPE
from tpuserve_formats.messages.official import (
    GetModelMetadataRequest,
    GetModelMetadataResponse,
    GetModelStatusRequest,
    GetModelStatusResponse,
    ModelVersionStatus,
    SignatureDef,
    SignatureDefMap,
    StatusProto,
    TensorInfo,
    TensorShapeProto,
)
from tpuserve_formats.messages.official import ModelSpec as ModelSpecProto
from tpuserve_server.core.terms.errors import InvalidArgument, shown
from tpuserve_server.core.terms.types import (
    ModelMetadata,
    ModelSpec,
    Precision,
    ServableId,
    Signature,
    TensorSpec,
    VersionStatus,
)


def decode_model_spec(proto: ModelSpecProto) -> ModelSpec:
    """Convert the spec as the client sent it: an empty name stays empty, an unset version or label is None.

    Names that are longer than any known are cut.
    """
    name, signature_name = shown(proto.name), shown(proto.signature_name)
    choice = proto.WhichOneof("version_choice")
    if choice is None:
        return ModelSpec(name, signature_name=signature_name)
    if choice == "version":
        return ModelSpec(name, version=proto.version.value, signature_name=signature_name)
    return ModelSpec(name, version_label=shown(proto.version_label), signature_name=signature_name)


@lru_cache(maxsize=1024)
def encode_model_spec(servable: ServableId, signature_name: str) -> bytes:
    """Serialize the spec of a response: numeric version and resolved signature, never a label.

    The result is cached, because all responses of a version's signature share it.
    """
    spec = ModelSpecProto(name=servable.name, signature_name=signature_name)
    spec.version.value = servable.version
    return bytes(spec.SerializeToString())


def decode_status_request(body: bytes) -> ModelSpec:
    """Decode the requested spec. Raises InvalidArgument if the request is malformed or has no spec.

    The service refuses an empty name as an unknown model.
    """
    try:
        request = GetModelStatusRequest.FromString(body)
    except DecodeError:
        raise InvalidArgument("Malformed GetModelStatusRequest") from None
    if not request.HasField("model_spec"):
        raise InvalidArgument("Missing ModelSpec")
    return decode_model_spec(request.model_spec)


def encode_status_response(statuses: Sequence[VersionStatus]) -> bytes:
    """Serialize a GetModelStatusResponse in the given order."""
    return bytes(_status_response(statuses).SerializeToString())


def status_to_json(statuses: Sequence[VersionStatus]) -> dict[str, object]:
    """Build the REST response as upstream's ToJsonString: proto names, default values included, version as a string."""
    fields: dict[str, object] = MessageToDict(
        _status_response(statuses), preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return fields


def _status_response(statuses: Sequence[VersionStatus]) -> GetModelStatusResponse:
    return GetModelStatusResponse(
        model_version_status=[
            ModelVersionStatus(
                version=status.servable.version,
                state=int(status.state),
                # The only text for people in this message. The code stays OK while the version may still load.
                status=StatusProto(error_code=status.error_code, error_message=status.error or status.waits),
            )
            for status in statuses
        ]
    )


# Upstream's only metadata field (tensorflow_serving/servables/tensorflow/get_model_metadata_impl.cc).
SIGNATURE_DEF = "signature_def"

# tpuserve's own fields, sent on request: labels as a StringValue with a class on each line, the others as a Struct.
LABELS = "tpuserve_labels"

PRECISION = "tpuserve_precision"

EVALUATION = "tpuserve_evaluation"

# The hash of the server's configuration, as configuration_sha256 of tpuserve_formats computes it.
CONFIGURATION = "tpuserve_configuration"

_METADATA_FIELDS = frozenset({SIGNATURE_DEF, LABELS, PRECISION, EVALUATION, CONFIGURATION})


@dataclass(frozen=True, slots=True)
class MetadataRequest:
    """A decoded GetModelMetadataRequest."""

    spec: ModelSpec
    fields: frozenset[str]


def decode_metadata_request(body: bytes) -> MetadataRequest:
    """Decode a GetModelMetadataRequest. Raises InvalidArgument if it has no spec or an unknown metadata field."""
    try:
        request = GetModelMetadataRequest.FromString(body)
    except DecodeError:
        raise InvalidArgument("Malformed GetModelMetadataRequest") from None
    if not request.HasField("model_spec"):
        raise InvalidArgument("Missing ModelSpec")
    if not request.metadata_field:
        raise InvalidArgument("GetModelMetadataRequest must specify at least one metadata_field")
    for field in request.metadata_field:
        if field not in _METADATA_FIELDS:
            raise InvalidArgument(f"Metadata field {shown(field)} is not supported")
    spec = decode_model_spec(request.model_spec)
    if not spec.name:
        raise InvalidArgument("ModelSpec has no name specified.")
    return MetadataRequest(spec, frozenset(request.metadata_field))


def encode_metadata_response(metadata: ModelMetadata, fields: Collection[str] = (SIGNATURE_DEF,)) -> bytes:
    """Serialize a GetModelMetadataResponse with `fields`. Its spec has name and version, but no signature.

    The response omits tpuserve's own fields that the version does not have.
    """
    response = _metadata_spec(metadata)
    if SIGNATURE_DEF in fields:
        response.metadata[SIGNATURE_DEF].Pack(signature_def_map(metadata))
    if LABELS in fields and metadata.labels:
        response.metadata[LABELS].Pack(StringValue(value="\n".join(metadata.labels)))
    for name, value in _own_documents(metadata, fields).items():
        response.metadata[name].Pack(ParseDict(value, Struct()))
    return bytes(response.SerializeToString())


def metadata_to_json(metadata: ModelMetadata, fields: Collection[str] = ()) -> dict[str, object]:
    """Build the REST response as upstream's ToJsonString: proto names, default values included, int64 as strings.

    It always holds the signatures. `fields` adds tpuserve's own fields.
    """
    spec = MessageToDict(
        _metadata_spec(metadata).model_spec, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    signatures = MessageToDict(
        signature_def_map(metadata), preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    own: dict[str, object] = {}
    if LABELS in fields and metadata.labels:
        own[LABELS] = list(metadata.labels)
    own |= _own_documents(metadata, fields)
    return {"model_spec": spec, "metadata": {SIGNATURE_DEF: signatures, **own}}


def _own_documents(metadata: ModelMetadata, fields: Collection[str]) -> dict[str, dict[str, object]]:
    """Return tpuserve's own fields that are JSON objects, as far as the version has them."""
    found: dict[str, dict[str, object]] = {}
    if PRECISION in fields and metadata.precision is not None:
        found[PRECISION] = dict(_precision_to_json(metadata.precision))
    if EVALUATION in fields and metadata.evaluation is not None:
        found[EVALUATION] = dict(metadata.evaluation)
    if CONFIGURATION in fields and metadata.configuration_sha256:
        found[CONFIGURATION] = {"sha256": metadata.configuration_sha256}
    return found


def _precision_to_json(precision: Precision) -> dict[str, str | float]:
    return {"compute_dtype": precision.compute_dtype, "atol": precision.atol, "rtol": precision.rtol}


def signature_def_map(metadata: ModelMetadata) -> SignatureDefMap:
    """Convert all signatures of the version, by name."""
    return SignatureDefMap(
        signature_def={name: signature_def(signature) for name, signature in metadata.signatures.items()}
    )


def signature_def(signature: Signature) -> SignatureDef:
    """Convert one signature: -1 for an unknown dimension, unknown_rank for an unknown rank."""
    return SignatureDef(
        inputs={name: _tensor_info(spec) for name, spec in signature.inputs.items()},
        outputs={name: _tensor_info(spec) for name, spec in signature.outputs.items()},
        method_name=signature.method_name,
    )


def _tensor_info(spec: TensorSpec) -> TensorInfo:
    wire_type = BY_DTYPE.get(spec.dtype)
    # 0 is DT_INVALID. The rest of the metadata is useful even if a client cannot send this type.
    return TensorInfo(
        name=spec.graph_name, dtype=wire_type.number if wire_type else 0, tensor_shape=_shape_proto(spec.shape)
    )


def _shape_proto(shape: tuple[int | None, ...] | None) -> TensorShapeProto:
    if shape is None:
        return TensorShapeProto(unknown_rank=True)
    return TensorShapeProto(dim=[TensorShapeProto.Dim(size=-1 if size is None else size) for size in shape])


def _metadata_spec(metadata: ModelMetadata) -> GetModelMetadataResponse:
    response = GetModelMetadataResponse()
    response.model_spec.name = metadata.servable.name
    response.model_spec.version.value = metadata.servable.version
    return response
