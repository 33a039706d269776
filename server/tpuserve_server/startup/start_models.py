"""The models to start with, from a file or from the flags of a single model."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpuserve_server.core.models.change_record import ChangeRecord, Changes
from tpuserve_server.core.models.model_config import ModelConfig
from tpuserve_server.startup.model_config_file import ModelConfigFile
from tpuserve_server.startup.model_settings import ModelSettings
from tpuserve_server.wire.model_server_config import decode_reload_request


@dataclass(frozen=True, slots=True)
class StartModels:
    """The operator's models, and the changes that clients made in the process before.

    `reloaded` are the models of a client's reload, or None if there was none.
    """

    configs: Sequence[ModelConfig]
    changes: Changes
    reloaded: Sequence[ModelConfig] | None = None

    @property
    def names(self) -> list[str]:
        """The names of the models that the server starts with."""
        given = self.configs if self.reloaded is None else self.reloaded
        return [config.name for config in given if config.name not in self.changes.unloaded]


def model_config_file(models: ModelSettings, record: ChangeRecord | None = None) -> ModelConfigFile | None:
    """Return the file of the models, or None if flags configure a single model. Reads nothing."""
    if models.model_config_file is None:
        return None
    poll_wait_s = models.model_config_file_poll_wait_seconds
    return ModelConfigFile(models.model_config_file, poll_wait_s=poll_wait_s, record=record)


def read_start_models(models: ModelSettings, file: ModelConfigFile | None, record: ChangeRecord | None) -> StartModels:
    """Return the models to start with. Raises ConfigError for an unusable file."""
    configs = read_models(models, file)
    changes = Changes() if record is None else record.read("" if file is None else file.text)
    reloaded = None if changes.request is None else decode_reload_request(changes.request)
    return StartModels(configs, changes, reloaded)


def read_models(models: ModelSettings, file: ModelConfigFile | None) -> Sequence[ModelConfig]:
    """Return the models of the file, or the single model. Raises ConfigError for an unusable file."""
    if file is not None:
        return file.read()
    return [ModelConfig(models.model_name, models.model_base_path or models.model_artifact_uri or "")]
