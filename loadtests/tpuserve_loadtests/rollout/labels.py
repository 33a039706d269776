"""The labels of a model in the configuration file and on the server, and their joint update.

A reload replaces the whole configuration of a server, and sends the file. Therefore, the file must match the server's
configuration before an update. After a restart, the server then has the same labels.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from tpuserve_client.errors import TpuserveError
from tpuserve_loadtests.rollout.model_config_text import BadConfig, ModelConfigText
from tpuserve_loadtests.rollout.model_service import ModelService

# The way to the server: a reload request, or the server's own polling of the file.
Apply: TypeAlias = Literal["reload", "poll"]

_LOOK_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a label: its version in the file, or None, and the server's behaviour in words."""

    label: str
    in_file: int | None
    server: str

    def __str__(self) -> str:
        in_file = "none" if self.in_file is None else f"version {self.in_file}"
        return f"label {self.label}: {in_file} in the file, {self.server} on the server"


class NotMoved(Exception):
    """Error for labels that could not be moved. The message states the reason and the labels' state."""


class Labels:
    """Mover of a model's labels. A label has a version, or None if it does not exist. Belongs to one thread."""

    def __init__(self, file: Path, model: str, service: ModelService, apply: Apply, patience_s: float) -> None:
        """Read the file. The server may take `patience_s` seconds to apply a change.

        Raises BadConfig for an invalid file.
        """
        self._file = file.resolve()  # resolved, so that a symbolic link remains a link
        self._model = model
        self._service = service
        self._apply = apply
        self._patience_s = patience_s
        self.config = self._read()

    def check(self) -> None:
        """Raise BadConfig if the file cannot be written, or differs from the server's configuration.

        A reload would otherwise change more than the labels.
        """
        if not (os.access(self._file, os.W_OK) and os.access(self._file.parent, os.W_OK)):
            raise BadConfig("the file and its directory must be writable, because the rollout replaces the file")
        for model in self.config.models:
            try:
                self._service.available(model)
            except TpuserveError as error:
                raise BadConfig(f"the file differs from the server: model {model}: {error.message}") from None
            for label, version in self.config.labels(model).items():
                served = self._service.labelled(model, label)
                # A label may have an unavailable version in the file, but not a different one.
                if served != version and (served is not None or model == self._model):
                    raise BadConfig(
                        f"the file differs from the server: label {label} of {model} is version {version} in the file, "
                        f"{_version_text(served)} on the server"
                    )

    def move(self, changes: Mapping[str, int | None]) -> None:
        """Move labels, and block until the server applies them.

        Raises NotMoved if it does not, with the file restored.
        """
        if self._read().text != self.config.text:
            raise NotMoved(f"another process changed {self._file} during the rollout; the file is left unchanged")
        before = self.config
        try:
            self.config = before.with_labels(self._model, changes)
        except BadConfig as error:
            raise NotMoved(f"{self._file}: {error}") from None
        if self.config.text == before.text and self._has_applied(changes):
            return
        self._write()
        refusal = self._send_file()
        # A failed reload may still have changed the server, so its current labels decide.
        if self._has_applied(changes) if refusal else self._wait_until_applied(changes):
            return
        self.config = before
        self._write()
        failure = self._send_file() if not refusal else ""
        again = f"; the reload of the previous file failed, too: {failure}" if failure else ""
        stand = "; ".join(map(str, self.standings(changes)))
        raise NotMoved(f"{refusal or 'the server did not apply the change'}{again}. {stand}")

    def standings(self, labels: Iterable[str]) -> tuple[Standing, ...]:
        """Return the labels' current state in the file and on the server."""
        in_file = self.config.labels(self._model)
        return tuple(Standing(label, in_file.get(label), self._server_state(label)) for label in labels)

    def _server_state(self, label: str) -> str:
        try:
            return _version_text(self._service.labelled(self._model, label))
        except TpuserveError as error:
            return f"unknown ({error.message})"

    def _wait_until_applied(self, changes: Mapping[str, int | None]) -> bool:
        """Wait until the server applies the changes. Return False after a timeout."""
        deadline_s = time.monotonic() + self._patience_s
        while not self._has_applied(changes):
            if time.monotonic() > deadline_s:
                return False
            time.sleep(_LOOK_S)
        return True

    def _has_applied(self, changes: Mapping[str, int | None]) -> bool:
        """Return whether the server has the changes now; False if it does not respond."""
        try:
            return all(self._service.labelled(self._model, label) == version for label, version in changes.items())
        except TpuserveError:
            return False

    def _send_file(self) -> str:
        """Send the file to the server unless it polls. Return the server's error, or an empty string."""
        if self._apply == "poll":
            return ""
        try:
            self._service.reload(self.config.message)
        except TpuserveError as error:
            return f"the server refused the reload: {error.message}"
        return ""

    def _read(self) -> ModelConfigText:
        try:
            return ModelConfigText(self._file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise BadConfig(getattr(error, "strerror", None) or "not a text file") from None

    def _write(self) -> None:
        """Replace the file atomically, because a polling server must never read a partial file."""
        with tempfile.NamedTemporaryFile(
            "w", dir=self._file.parent, prefix=f".{self._file.name}.", delete=False
        ) as new:
            new.write(self.config.text)
            new.flush()
            os.fsync(new.fileno())
        shutil.copymode(self._file, new.name)
        os.replace(new.name, self._file)


def _version_text(version: int | None) -> str:
    return "none" if version is None else f"version {version}"
