"""ModelSpec: the message to the core's type."""

from typing import TYPE_CHECKING

from tpuserve_server.core.types import ModelSpec

if TYPE_CHECKING:
    from tensorflow_serving.apis.model_pb2 import ModelSpec as ModelSpecProto


def decode_model_spec(proto: "ModelSpecProto") -> ModelSpec:
    """The spec as it was sent: an empty name stays empty, an unset version or label is None."""
    choice = proto.WhichOneof("version_choice")
    if choice is None:
        return ModelSpec(proto.name, signature_name=proto.signature_name)
    if choice == "version":
        return ModelSpec(proto.name, version=proto.version.value, signature_name=proto.signature_name)
    return ModelSpec(proto.name, version_label=proto.version_label, signature_name=proto.signature_name)
