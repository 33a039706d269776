"""--model_config_file: a ModelServerConfig on disk."""

from pathlib import Path

from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

from tpuserve_server.config.text_format import ConfigError, parse, read_text
from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.core.model_config import ModelConfig
from tpuserve_server.wire.model_server_config import model_configs


def read_model_configs(path: Path) -> tuple[ModelConfig, ...]:
    """The models of the file at `path`; none for an empty file, as upstream at its start. Blocking.

    Raises:
        ConfigError: It cannot be read, is no ModelServerConfig, or is one that is not a list of models.
    """
    return parse_model_configs(read_text(path), path) or ()


def parse_model_configs(text: str, path: Path) -> tuple[ModelConfig, ...] | None:
    """As `read_model_configs`, of `text` that was read from `path`. None when it configures nothing at all."""
    config = parse(text, ModelServerConfig(), path)
    if config.WhichOneof("config") is None:
        return None
    try:
        return model_configs(config)
    except InvalidArgument as error:
        raise ConfigError(f"{error.message} Invalid model configuration file: '{path}'") from None
