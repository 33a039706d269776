"""HandleReloadConfigRequest: the message to ModelConfigs, and the answer."""

from google.protobuf.message import DecodeError

from tpuserve_formats.messages.official import ReloadConfigRequest, ReloadConfigResponse, StatusProto
from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.core.model_config import ModelConfig
from tpuserve_server.wire.model_server_config import extended, model_configs

# The metrics that a request may name are TensorFlow's own, of which there are none here.
RELOADED: bytes = ReloadConfigResponse(status=StatusProto()).SerializeToString()


def decode_reload_request(body: bytes) -> tuple[ModelConfig, ...]:
    """The models asked for. Raises InvalidArgument, as upstream for anything but a list of models."""
    try:
        config = extended(ReloadConfigRequest.FromString(body).config)
    except DecodeError:
        raise InvalidArgument("Malformed ReloadConfigRequest") from None
    return model_configs(config)
