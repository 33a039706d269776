"""GetModelMetadata: signatures as SignatureDef messages and as JSON, and the names of classes where there are some."""

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from google.protobuf.wrappers_pb2 import StringValue

from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.core.types import ModelMetadata, ModelSpec, Signature, TensorSpec
from tpuserve_server.messages.dtypes import BY_DTYPE
from tpuserve_server.messages.official import (
    GetModelMetadataRequest,
    GetModelMetadataResponse,
    SignatureDef,
    SignatureDefMap,
    TensorInfo,
    TensorShapeProto,
)
from tpuserve_server.wire.model_spec import decode_model_spec

# The one metadata field there is (tensorflow_serving/servables/tensorflow/get_model_metadata_impl.cc).
SIGNATURE_DEF = "signature_def"
# tpuserve's own, beside upstream's and only for versions that have labels: a StringValue with a class on each line.
LABELS = "tpuserve_labels"


def decode_metadata_request(body: bytes) -> ModelSpec:
    """The spec asked for; raises InvalidArgument without one or when anything but signatures is wanted."""
    try:
        request = GetModelMetadataRequest.FromString(body)
    except DecodeError:
        raise InvalidArgument("Malformed GetModelMetadataRequest") from None
    if not request.HasField("model_spec"):
        raise InvalidArgument("Missing ModelSpec")
    if not request.metadata_field:
        raise InvalidArgument("GetModelMetadataRequest must specify at least one metadata_field")
    for field in request.metadata_field:
        if field != SIGNATURE_DEF:
            raise InvalidArgument(f"Metadata field {field} is not supported")
    spec = decode_model_spec(request.model_spec)
    if not spec.name:
        raise InvalidArgument("ModelSpec has no name specified.")
    return spec


def encode_metadata_response(metadata: ModelMetadata) -> bytes:
    """A serialized GetModelMetadataResponse; its spec has name and version, no signature."""
    response = _response_spec(metadata)
    response.metadata[SIGNATURE_DEF].Pack(signature_def_map(metadata))
    if metadata.labels:
        response.metadata[LABELS].Pack(StringValue(value="\n".join(metadata.labels)))
    return bytes(response.SerializeToString())


def metadata_to_json(metadata: ModelMetadata) -> dict[str, object]:
    """What REST answers, as upstream's ToJsonString: proto names, defaults printed, int64 as strings."""
    spec = MessageToDict(
        _response_spec(metadata).model_spec, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    signatures = MessageToDict(
        signature_def_map(metadata), preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    labels = {LABELS: list(metadata.labels)} if metadata.labels else {}
    return {"model_spec": spec, "metadata": {SIGNATURE_DEF: signatures, **labels}}


def signature_def_map(metadata: ModelMetadata) -> SignatureDefMap:
    """Every signature of the version by name."""
    return SignatureDefMap(
        signature_def={name: signature_def(signature) for name, signature in metadata.signatures.items()}
    )


def signature_def(signature: Signature) -> SignatureDef:
    """One signature: -1 for an unknown dimension, unknown_rank for an unknown rank."""
    return SignatureDef(
        inputs={name: _tensor_info(spec) for name, spec in signature.inputs.items()},
        outputs={name: _tensor_info(spec) for name, spec in signature.outputs.items()},
        method_name=signature.method_name,
    )


def _tensor_info(spec: TensorSpec) -> TensorInfo:
    wire_type = BY_DTYPE.get(spec.dtype)
    # 0 is DT_INVALID: metadata is still worth showing for a type that cannot be fed.
    return TensorInfo(
        name=spec.graph_name, dtype=wire_type.number if wire_type else 0, tensor_shape=_shape_proto(spec.shape)
    )


def _shape_proto(shape: tuple[int | None, ...] | None) -> TensorShapeProto:
    if shape is None:
        return TensorShapeProto(unknown_rank=True)
    return TensorShapeProto(dim=[TensorShapeProto.Dim(size=-1 if size is None else size) for size in shape])


def _response_spec(metadata: ModelMetadata) -> GetModelMetadataResponse:
    response = GetModelMetadataResponse()
    response.model_spec.name = metadata.servable.name
    response.model_spec.version.value = metadata.servable.version
    return response
