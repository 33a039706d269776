"""--model_config_file and --model_config_file_poll_wait_seconds: the models at the start, and changes as they come."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from tpuserve_formats.messages.model_server_config import ModelServerConfig
from tpuserve_server.config.text_format import ConfigError, parse, read_text
from tpuserve_server.core.errors import InvalidArgument, ServingError
from tpuserve_server.core.model_config import ModelConfig
from tpuserve_server.wire.model_server_config import model_configs

_log = logging.getLogger(__name__)

Apply: TypeAlias = Callable[[tuple[ModelConfig, ...]], object]

# server_core.cc, where a list of models is followed by nothing at all. A file that is being written looks so, too.
_EMPTIED = "Cannot transition to requested config. It is only legal to transition from one ModelConfigList to another."


class ModelConfigFile:
    """Read once at the start, then every `poll_wait_s` seconds on a thread of its own, and applied when it has changed.

    A text that is refused changes nothing, is tried again at every look (what it waits for may come), and is logged
    once for each reason. Fields belong to the thread once it runs; `stop_watching` may be called from any other.
    """

    def __init__(self, path: Path, *, poll_wait_s: float) -> None:
        """`poll_wait_s` 0: changes are not looked for."""
        self._path = path
        self._poll_wait_s = poll_wait_s
        self._applied: str | None = None
        self._complaint: str | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def read(self) -> tuple[ModelConfig, ...]:
        """The models at the start; none for an empty file, as upstream. Blocking.

        Raises:
            ConfigError: It cannot be read, is no ModelServerConfig, or is one that is not a list of models.
        """
        text = read_text(self._path)
        configs = self._parse(text) or ()
        self._applied = text
        return configs

    def watch(self, apply: Apply) -> None:
        """Begin to look for changes. `apply` raises ServingError for one that it refuses."""
        if self._poll_wait_s > 0:
            self._thread = threading.Thread(target=self._run, args=(apply,), name="model-config-file", daemon=True)
            self._thread.start()

    def stop_watching(self) -> None:
        """End, after the look that is under way. Blocking."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def poll(self, apply: Apply) -> None:
        """One look: what the thread does again and again. Blocking."""
        try:
            text = read_text(self._path)
            if text == self._applied:
                return
            configs = self._parse(text)
            if configs is None:
                raise ConfigError(f"{_EMPTIED} '{self._path}' is empty")
            apply(configs)
        except (ConfigError, ServingError) as error:
            self._complain(str(error))
            return
        self._applied, self._complaint = text, None
        _log.info("Model configuration file '%s' changed, and is applied", self._path)

    def _run(self, apply: Apply) -> None:
        while not self._stopping.wait(self._poll_wait_s):
            try:
                self.poll(apply)
            except Exception:  # A defect must not end the looks that would bring the next file.
                _log.exception("Looking at the model configuration file failed")

    def _parse(self, text: str) -> tuple[ModelConfig, ...] | None:
        """None when `text` configures nothing at all."""
        config = parse(text, ModelServerConfig(), self._path)
        if config.WhichOneof("config") is None:
            return None
        try:
            return model_configs(config)
        except InvalidArgument as error:
            raise ConfigError(f"{error.message} Invalid model configuration file: '{self._path}'") from None

    def _complain(self, reason: str) -> None:
        if reason != self._complaint:
            self._complaint = reason
            _log.error("Model configuration file refused; what was configured before stays: %s", reason)
