"""HandleReloadConfigRequest: converts the request to ModelConfigs, and holds the response."""

from google.protobuf.message import DecodeError

from tpuserve_formats.messages.official import ReloadConfigRequest, ReloadConfigResponse, StatusProto
from tpuserve_server.core.models.model_config import ModelConfig
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.wire.model_server_config import extended, model_configs

# The response has no metrics: requests name TensorFlow's metrics, which this server does not have.
RELOADED: bytes = ReloadConfigResponse(status=StatusProto()).SerializeToString()


def decode_reload_request(body: bytes) -> tuple[ModelConfig, ...]:
    """Return the requested models. Raises InvalidArgument, as upstream does, unless the request is a list of models."""
    try:
        config = extended(ReloadConfigRequest.FromString(body).config)
    except DecodeError:
        raise InvalidArgument("Malformed ReloadConfigRequest") from None
    return model_configs(config)
