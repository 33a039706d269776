"""The models to start with, from flags or from --model_config_file, and the polls of that file for changes."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tpuserve_formats.messages.model_server_config import ModelServerConfig, configuration_sha256
from tpuserve_server.core.models.change_record import ChangeRecord, Changes
from tpuserve_server.core.models.model_config import ModelConfig
from tpuserve_server.core.terms.errors import InvalidArgument, ServingError
from tpuserve_server.core.terms.storage import FileName
from tpuserve_server.startup.config_files import ConfigError, parse, read_text, show_file
from tpuserve_server.startup.server_settings import ModelSettings
from tpuserve_server.wire.model_server_config import decode_reload_request, model_configs

_log = logging.getLogger(__name__)

# Takes the models of a configuration and its hash.
Apply: TypeAlias = Callable[[tuple[ModelConfig, ...], str], object]

# Message of server_core.cc for a change from a list of models to an empty configuration. A file that is being written
# can be empty too.
_EMPTIED = "Cannot transition to requested config. It is only legal to transition from one ModelConfigList to another."


class ModelConfigFile:
    """Model configuration file: read at the start, then polled by a thread that applies changes.

    `poll_soon` polls it, too, even without time between polls.

    A refused text changes nothing. Each poll retries it, because a missing base path may appear later. A reason is
    logged when it differs from the previous one.

    Fields belong to the thread while it runs. Any other thread may call `poll_soon` and `stop_watching`.
    """

    def __init__(self, path: FileName, *, poll_wait_s: float, record: ChangeRecord | None = None) -> None:
        """Take the time between polls in seconds; 0: only `poll_soon` polls. `record` refers to the text in force."""
        self._path = path
        self._record = record
        self._poll_wait_s = poll_wait_s
        self._applied: str | None = None
        # The hash of the last configuration that `read` has returned.
        self.sha256 = ""
        self._complaint: str | None = None
        self._wake = threading.Event()
        self._stopping = False
        self._is_asked = False
        self._thread: threading.Thread | None = None

    def read(self) -> tuple[ModelConfig, ...]:
        """Read the models to start with: none for an empty file, as upstream does. Blocks.

        Raises:
            ConfigError: the file cannot be read, is not a ModelServerConfig, or has no list of models.
        """
        text = read_text(self._path)
        configs, self.sha256 = self._parse(text) or ((), "")
        self._applied = text
        return configs

    @property
    def text(self) -> str:
        """The text in force: that of the last `read`, or of the last applied change."""
        return self._applied or ""

    def watch(self, apply: Apply) -> None:
        """Start to poll for changes. `apply` raises ServingError to refuse a change."""
        self._thread = threading.Thread(target=self._run, args=(apply,), name="model-config-file", daemon=True)
        self._thread.start()

    def poll_soon(self) -> None:
        """Poll at once, on the thread, and log the outcome in any case."""
        self._is_asked = True
        self._wake.set()

    def stop_watching(self) -> None:
        """Stop the thread after the poll in progress. Blocks."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def poll(self, apply: Apply) -> None:
        """Poll the file once, and apply a change. Blocks."""
        was_asked, self._is_asked = self._is_asked, False
        if was_asked:
            self._complaint = None
        try:
            text = read_text(self._path)
            if text == self._applied:
                if was_asked:
                    _log.info("The model configuration file '%s' has not changed", show_file(self._path))
                return
            parsed = self._parse(text)
            if parsed is None:
                raise ConfigError(f"{_EMPTIED} '{show_file(self._path)}' is empty")
            apply(*parsed)
        except (ConfigError, ServingError) as error:
            self._complain(str(error))
            return
        self._applied, self._complaint = text, None
        if self._record is not None:
            self._record.rebase(text)
        _log.info("Applied the changed model configuration file '%s'", show_file(self._path))

    def _run(self, apply: Apply) -> None:
        while True:
            self._wake.wait(self._poll_wait_s or None)
            # Clear the event before polling, so that the next round sees what is asked during the poll.
            self._wake.clear()
            if self._stopping:
                return
            try:
                self.poll(apply)
            except Exception:  # A bug must not stop the polls that read the next file.
                _log.exception("Polling the model configuration file failed")

    def _parse(self, text: str) -> tuple[tuple[ModelConfig, ...], str] | None:
        """Return the models and the hash, or None for an empty configuration."""
        config = parse(text, ModelServerConfig(), self._path)
        if config.WhichOneof("config") is None:
            return None
        try:
            return model_configs(config), configuration_sha256(config)
        except InvalidArgument as error:
            raise ConfigError(f"{error.message} Invalid model configuration file: '{show_file(self._path)}'") from None

    def _complain(self, reason: str) -> None:
        if reason != self._complaint:
            self._complaint = reason
            _log.error("Model configuration file refused; the server keeps the previous configuration: %s", reason)


@dataclass(frozen=True, slots=True)
class StartModels:
    """The operator's models, and the changes that clients made in the process before.

    `reloaded` are the models of a client's reload, or None if there was none. `sha256` is the hash of the configuration
    that takes effect, or empty if flags are the configuration.
    """

    configs: Sequence[ModelConfig]
    changes: Changes
    reloaded: Sequence[ModelConfig] | None = None
    sha256: str = ""

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
    if changes.request is not None:
        return StartModels(configs, changes, *decode_reload_request(changes.request))
    return StartModels(configs, changes, None, "" if file is None else file.sha256)


def read_models(models: ModelSettings, file: ModelConfigFile | None) -> Sequence[ModelConfig]:
    """Return the models of the file, or the single model. Raises ConfigError for an unusable file."""
    if file is not None:
        return file.read()
    return [ModelConfig(models.model_name, models.model_base_path or models.model_artifact_uri or "")]
