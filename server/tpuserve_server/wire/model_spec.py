"""ModelSpec: the message to the core's type, and a response's back."""

from functools import lru_cache

from tpuserve_formats.messages.official import ModelSpec as ModelSpecProto
from tpuserve_server.core.types import ModelSpec, ServableId


def decode_model_spec(proto: ModelSpecProto) -> ModelSpec:
    """The spec as it was sent: an empty name stays empty, an unset version or label is None."""
    choice = proto.WhichOneof("version_choice")
    if choice is None:
        return ModelSpec(proto.name, signature_name=proto.signature_name)
    if choice == "version":
        return ModelSpec(proto.name, version=proto.version.value, signature_name=proto.signature_name)
    return ModelSpec(proto.name, version_label=proto.version_label, signature_name=proto.signature_name)


@lru_cache(maxsize=1024)
def encode_model_spec(servable: ServableId, signature_name: str) -> bytes:
    """A response's spec, serialized: numeric version and resolved signature, never a label.

    Made by protobuf: it is the same for every answer of a version and so cached.
    """
    spec = ModelSpecProto(name=servable.name, signature_name=signature_name)
    spec.version.value = servable.version
    return bytes(spec.SerializeToString())
