"""--model_config_file_poll_wait_seconds: the file's changes, applied as they come."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from tpuserve_server.config.model_server_config import parse_model_configs
from tpuserve_server.config.text_format import ConfigError, read_text
from tpuserve_server.core.errors import ServingError
from tpuserve_server.core.model_config import ModelConfig

_log = logging.getLogger(__name__)

# server_core.cc, where a list of models is followed by nothing at all. A file that is being written looks so, too.
_EMPTIED = "Cannot transition to requested config. It is only legal to transition from one ModelConfigList to another."


class ModelConfigPoller:
    """Reads the file every `wait_s` seconds on a thread of its own, and applies it when its text has changed.

    A text that is refused changes nothing, is tried again at every look (what it waits for may come), and is logged
    once for each reason. Fields belong to the thread once it runs; `stop` may be called from any other.
    """

    def __init__(self, path: Path, apply: Callable[[tuple[ModelConfig, ...]], None], wait_s: float) -> None:
        """`apply` raises ServingError when it refuses; it may block, and `stop` then waits for it."""
        self._path = path
        self._apply = apply
        self._wait_s = wait_s
        self._applied: str | None = None
        self._complaint: str | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="model-config-poller", daemon=True)

    def read(self) -> tuple[ModelConfig, ...]:
        """The models at the start, before the thread is there. Blocking. Raises ConfigError."""
        text = read_text(self._path)
        configs = parse_model_configs(text, self._path) or ()
        self._applied = text
        return configs

    def start(self) -> None:
        """Begin to look, if `wait_s` says so."""
        if self._wait_s > 0:
            self._thread.start()

    def stop(self) -> None:
        """Wait for the look that is under way, and end."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def poll(self) -> None:
        """One look. What `start`'s thread does again and again; blocking."""
        try:
            text = read_text(self._path)
            if text == self._applied:
                return
            configs = parse_model_configs(text, self._path)
            if configs is None:
                raise ConfigError(f"{_EMPTIED} '{self._path}' is empty")
            self._apply(configs)
        except (ConfigError, ServingError) as error:
            self._complain(str(error))
            return
        self._applied, self._complaint = text, None
        _log.info("Model configuration file '%s' changed, and is applied", self._path)

    def _run(self) -> None:
        while not self._stopping.wait(self._wait_s):
            try:
                self.poll()
            except Exception:  # A defect must not end the looks that would bring the next file.
                _log.exception("Looking at the model configuration file failed")

    def _complain(self, reason: str) -> None:
        if reason != self._complaint:
            self._complaint = reason
            _log.error("Model configuration file refused; what was configured before stays: %s", reason)
