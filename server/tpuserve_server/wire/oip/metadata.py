"""Metadata of the server and of models: value types, gRPC messages and JSON."""

from collections.abc import Mapping
from dataclasses import dataclass

from tpuserve_formats.errors import FormatError
from tpuserve_formats.messages.oip import ModelMetadataResponse, ServerMetadataResponse
from tpuserve_formats.oip.datatypes import datatype_of
from tpuserve_server.core.terms.types import Signature, TensorSpec

# The protocol's name for the framework (kserve/open-inference-protocol, inference_rest.md, "Platforms").
PLATFORM = "tensorflow_savedmodel"


@dataclass(frozen=True, slots=True)
class ServerDescription:
    """The server's name, version and extensions of the protocol."""

    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A model's name, its versions that answer requests, and the signature that requests use by default."""

    name: str
    versions: tuple[int, ...]
    platform: str
    signature: Signature


def encode_server(server: ServerDescription) -> bytes:
    """Serialize a ServerMetadataResponse."""
    response = ServerMetadataResponse(name=server.name, version=server.version, extensions=server.extensions)
    return response.SerializeToString()


def server_to_json(server: ServerDescription) -> dict[str, object]:
    """Build the REST response."""
    return {"name": server.name, "version": server.version, "extensions": list(server.extensions)}


def encode_model(model: ModelDescription) -> bytes:
    """Serialize a ModelMetadataResponse."""
    response = ModelMetadataResponse(
        name=model.name,
        versions=[str(number) for number in model.versions],
        platform=model.platform,
        inputs=[_tensor_message(name, spec) for name, spec in model.signature.inputs.items()],
        outputs=[_tensor_message(name, spec) for name, spec in model.signature.outputs.items()],
    )
    return response.SerializeToString()


def model_to_json(model: ModelDescription) -> dict[str, object]:
    """Build the REST response."""
    return {
        "name": model.name,
        "versions": [str(number) for number in model.versions],
        "platform": model.platform,
        "inputs": _tensors_to_json(model.signature.inputs),
        "outputs": _tensors_to_json(model.signature.outputs),
    }


def datatype_text(spec: TensorSpec) -> str:
    """Return a tensor's datatype, or numpy's name in capitals for a dtype that the protocol has no datatype for."""
    try:
        return datatype_of(spec.dtype)
    except FormatError:
        return str(spec.dtype).upper()


def shape_sizes(spec: TensorSpec) -> list[int]:
    """Return a tensor's shape with -1 for unknown dimensions, and [-1] for an unknown rank, which has no form."""
    if spec.shape is None:
        return [-1]
    return [-1 if size is None else size for size in spec.shape]


def _tensor_message(name: str, spec: TensorSpec) -> ModelMetadataResponse.TensorMetadata:
    return ModelMetadataResponse.TensorMetadata(name=name, datatype=datatype_text(spec), shape=shape_sizes(spec))


def _tensors_to_json(specs: Mapping[str, TensorSpec]) -> list[dict[str, object]]:
    return [{"name": name, "datatype": datatype_text(spec), "shape": shape_sizes(spec)} for name, spec in specs.items()]
