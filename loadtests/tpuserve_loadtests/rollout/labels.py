"""The labels of a model in the configuration file and on the server, and their joint update.

A reload replaces the whole configuration of a server, and sends the file. Therefore, the file must match the server's
configuration before an update. After a restart, the server then has the same labels.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from tpuserve_client.errors import DeadlineExceeded, TpuserveError, Unavailable
from tpuserve_loadtests.rollout.model_config_text import BadConfig, ModelConfigText
from tpuserve_loadtests.rollout.model_service import ModelService


class ConfigFile:
    """A model_config_file. Its text appears in messages as its path."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()  # resolved, so that a symbolic link remains a link

    def read(self) -> ModelConfigText:
        """Read the file. Raises BadConfig if it cannot be read or is invalid."""
        try:
            return ModelConfigText(self._path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise BadConfig(getattr(error, "strerror", None) or "not a text file") from None

    def check_writable(self) -> None:
        """Raise BadConfig if the file cannot be replaced."""
        if not (os.access(self._path, os.W_OK) and os.access(self._path.parent, os.W_OK)):
            raise BadConfig("the file and its directory must be writable, because the rollout replaces the file")

    def write(self, config: ModelConfigText) -> None:
        """Replace the file atomically and durably. Raises BadConfig, with the old file in place.

        A polling server, or a server that starts, must never read a partial file.
        """
        try:
            self._replace(config.text)
        except OSError as error:
            raise BadConfig(f"cannot write the file: {error.strerror}") from None

    def _replace(self, text: str) -> None:
        folder = self._path.parent
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=f".{self._path.name}.", delete=False) as new:
            try:
                new.write(text)
                new.flush()
                os.fsync(new.fileno())
                shutil.copymode(self._path, new.name)
                os.replace(new.name, self._path)
            except OSError:
                os.unlink(new.name)
                raise
        # The new name is durable only after the directory is written, too.
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def __str__(self) -> str:
        return str(self._path)


# The way to the server: a reload request, or the server's own polling of the file.
Apply: TypeAlias = Literal["reload", "poll"]

_LOOK_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a label: its version in the file and on the server, both in words."""

    label: str
    in_file: str
    server: str

    def __str__(self) -> str:
        return f"label {self.label}: {self.in_file} in the file, {self.server} on the server"


class NotMoved(Exception):
    """Error for labels that could not be moved. The message states the reason and the labels' state."""


class ServerGone(NotMoved):
    """Error for labels that the file has, while the server does not respond."""


@dataclass(frozen=True, slots=True)
class _Problem:
    """The reason why a server does not have the labels: it refused them, it does not respond, or another reason."""

    words: str
    is_refusal: bool = False
    is_gone: bool = False


class Labels:
    """Mover of a model's labels. A label has a version, or None if it does not exist. Belongs to one thread."""

    def __init__(
        self,
        file: Path,
        model: str,
        service: ModelService,
        apply: Apply,
        patience_s: float,
        on_wait: Callable[[str], None] = lambda words: None,
    ) -> None:
        """Read the file. The server may take `patience_s` seconds to apply a change.

        `on_wait` receives a message when the labels' return has to wait for the server. Raises BadConfig for an invalid
        file.
        """
        self._file = ConfigFile(file)
        self._model = model
        self._service = service
        self._apply = apply
        self._patience_s = patience_s
        self._on_wait = on_wait
        # The configuration that the server should have.
        self.config = self._file.read()

    def check(self) -> None:
        """Raise BadConfig if the file cannot be written, or differs from the server's configuration.

        A reload would otherwise change more than the labels.
        """
        self._file.check_writable()
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
                        f"{version_text(served)} on the server"
                    )

    def move(self, changes: Mapping[str, int | None]) -> None:
        """Move labels, and block until the server applies them.

        Raises NotMoved if it does not, with the file restored.
        """
        before = self.config
        try:
            if self._file.read().text != before.text:
                raise NotMoved(f"another process changed {self._file} during the rollout; the file is left unchanged")
            changed = before.with_labels(self._model, changes)
            if changed.text == before.text and self._has_applied(changes):
                return
            self._file.write(changed)
        except BadConfig as error:
            raise NotMoved(f"{self._file}: {error}") from None
        self.config = changed
        refusal = self._send_file()
        # A failed reload may still have changed the server, so its current labels decide.
        if self._has_applied(changes) if refusal else self._wait_until_applied(changes):
            return
        self.config = before
        failure = self._write_labels(before.labels(self._model), changes) or ("" if refusal else self._send_file())
        again = f"; the labels could not be restored: {failure}" if failure else ""
        stand = "; ".join(map(str, self.standings(changes)))
        raise NotMoved(f"{refusal or 'the server did not apply the change'}{again}. {stand}")

    def restore(self, labels: Mapping[str, int | None]) -> None:
        """Write the labels' versions to the file, and then send the file until the server has them.

        The file comes first, because a server that stopped reads it when it starts. In a file that another process
        changed in the meantime, only the labels change. Blocks up to `patience_s` for a server that does not respond.

        Raises:
            ServerGone: the file has the labels, and the server does not respond.
            NotMoved: the file cannot be written, or the server does not apply the labels.
        """
        problem = self._write_labels(labels, labels)
        try:
            self.config = self.config.with_labels(self._model, labels)
            self._send_until_applied(labels)
        except BadConfig as error:
            raise NotMoved(f"{self._file}: {error}") from None
        except NotMoved as error:
            raise NotMoved(f"{problem}; {error}") if problem else error from None
        if problem:
            raise NotMoved(problem)

    def _write_labels(self, versions: Mapping[str, int | None], labels: Iterable[str]) -> str:
        try:
            current = self._file.read()
            changed = current.with_labels(self._model, {label: versions.get(label) for label in labels})
            if changed.text != current.text:
                self._file.write(changed)
        except BadConfig as error:
            return f"the labels cannot be written to {self._file}: {error}"
        return ""

    def _send_until_applied(self, labels: Mapping[str, int | None]) -> None:
        """Send the file until the server has the labels. Raises NotMoved and ServerGone."""
        deadline_s = time.monotonic() + self._patience_s
        was_gone = False
        while problem := self._problem_after_sending(labels):
            # A server that restarts can refuse a label until it has loaded the version.
            if (problem.is_refusal and not was_gone) or time.monotonic() > deadline_s:
                raise self._give_up(problem, labels)
            if problem.is_gone and not was_gone:
                self._on_wait(f"{self._gone(problem)}. Waiting for the server, at most {self._patience_s:g} s.")
            was_gone = was_gone or problem.is_gone
            time.sleep(_LOOK_S)

    def _problem_after_sending(self, labels: Mapping[str, int | None]) -> _Problem | None:
        problem = _Problem("the server did not apply the change")
        if self._apply == "reload":
            try:
                self._service.reload(self.config.message)
            except TpuserveError as error:
                is_refusal = not isinstance(error, Unavailable | DeadlineExceeded)
                problem = _Problem(f"the server refused the reload: {error.message}", is_refusal=is_refusal)
        try:
            # A failed reload may still have changed the server, so its current labels decide.
            return None if self._has(labels) else problem
        except TpuserveError as error:
            return _Problem(error.message, is_gone=True)

    def _give_up(self, problem: _Problem, labels: Iterable[str]) -> NotMoved:
        if problem.is_gone:
            return ServerGone(self._gone(problem))
        return NotMoved(f"{problem.words}. {'; '.join(map(str, self.standings(labels)))}")

    def _gone(self, problem: _Problem) -> str:
        return f"the server does not respond: {problem.words.rstrip('.')}. {self._after_a_start()}"

    def _after_a_start(self) -> str:
        try:
            labels = self._file.read().labels(self._model)
        except BadConfig as error:
            return f"{self._file} cannot be read: {error}"
        listed = ", ".join(f"{label}: version {version}" for label, version in sorted(labels.items()))
        return f"{self._file} has {listed or 'no labels'}; a server that starts with this file serves these versions"

    def standings(self, labels: Iterable[str]) -> tuple[Standing, ...]:
        try:
            found = self._file.read().labels(self._model)
        except BadConfig as error:
            unknown = f"unknown ({error})"
            return tuple(Standing(label, unknown, self._server_state(label)) for label in labels)
        return tuple(Standing(label, version_text(found.get(label)), self._server_state(label)) for label in labels)

    def _server_state(self, label: str) -> str:
        try:
            return version_text(self._service.labelled(self._model, label))
        except TpuserveError as error:
            return f"unknown ({error.message})"

    def _wait_until_applied(self, changes: Mapping[str, int | None]) -> bool:
        deadline_s = time.monotonic() + self._patience_s
        while not self._has_applied(changes):
            if time.monotonic() > deadline_s:
                return False
            time.sleep(_LOOK_S)
        return True

    def _has_applied(self, changes: Mapping[str, int | None]) -> bool:
        try:
            return self._has(changes)
        except TpuserveError:
            return False

    def _has(self, labels: Mapping[str, int | None]) -> bool:
        """Return whether the server has the labels now. Raises TpuserveError if it does not respond."""
        return all(self._service.labelled(self._model, label) == version for label, version in labels.items())

    def _send_file(self) -> str:
        if self._apply == "poll":
            return ""
        try:
            self._service.reload(self.config.message)
        except TpuserveError as error:
            return f"the server refused the reload: {error.message}"
        return ""


def version_text(version: int | None) -> str:
    return "none" if version is None else f"version {version}"
