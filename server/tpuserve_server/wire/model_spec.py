"""ModelSpec: converts the message of a request to the core's type, and encodes the one of a response."""

from functools import lru_cache

from tpuserve_formats.messages.official import ModelSpec as ModelSpecProto
from tpuserve_server.core.terms.errors import shown
from tpuserve_server.core.terms.types import ModelSpec, ServableId


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
