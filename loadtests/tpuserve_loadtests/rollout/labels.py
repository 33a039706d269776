"""The labels of one model: what the configuration file says, what the server answers, and moving both together.

A reload replaces the whole configuration of a server. So the file must be what the server runs, which is made sure of
first, and is what a reload sends; whoever starts the server again then finds the labels where they were left.
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

# How the server learns of it: it is told, or it reads the file again and again by itself.
Apply: TypeAlias = Literal["reload", "poll"]

_LOOK_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a label is: the version that the file gives it, None for none, and what the server does, in words."""

    label: str
    in_file: int | None
    server: str

    def __str__(self) -> str:
        in_file = "none" if self.in_file is None else self.in_file
        return f"label {self.label}: {in_file} in the file, the server {self.server}"


class NotMoved(Exception):
    """The labels could not be moved; the message says why and what stands where."""


class Labels:
    """Moves labels of `model`. A label is a version, or None where there is none. Belongs to one thread."""

    def __init__(self, file: Path, model: str, service: ModelService, apply: Apply, patience_s: float) -> None:
        """`patience_s`: how long the server may take until it answers as the file says. BadConfig for a bad file."""
        self._file = file.resolve()  # a link stays one
        self._model = model
        self._service = service
        self._apply = apply
        self._patience_s = patience_s
        self.config = self._read()

    def check(self) -> None:
        """BadConfig if the file cannot be written, or is not what the server runs: nothing else of it may change."""
        if not (os.access(self._file, os.W_OK) and os.access(self._file.parent, os.W_OK)):
            raise BadConfig("it cannot be written (a new file takes its place, so its folder must be writable, too)")
        for model in self.config.models:
            try:
                self._service.available(model)
            except TpuserveError as error:
                raise BadConfig(f"it is not what the server runs: model {model}: {error.message}") from None
            for label, version in self.config.labels(model).items():
                answers = self._service.labelled(model, label)
                # A label may stand for a version that is not available; for another one it may not.
                if answers != version and (answers is not None or model == self._model):
                    raise BadConfig(
                        f"it is not what the server runs: it gives label {label} of {model} to version {version}, "
                        f"and the server {_answers(answers)}"
                    )

    def move(self, changes: Mapping[str, int | None]) -> None:
        """Block until the server answers to the labels so. NotMoved, with the file as it was, where it does not."""
        if self._read().text != self.config.text:
            raise NotMoved(f"{self._file} was changed by somebody else meanwhile, and is left as it is")
        before = self.config
        try:
            self.config = before.with_labels(self._model, changes)
        except BadConfig as error:
            raise NotMoved(f"{self._file}: {error}") from None
        if self.config.text == before.text and self._answers_so(changes):
            return
        self._write()
        refusal = self._tell()
        # What is refused changes nothing; of anything else that goes wrong the server's answers tell what came of it.
        if self._answers_so(changes) if refusal else self._stands(changes):
            return
        self.config = before
        self._write()
        told = self._tell() if not refusal else ""
        again = f"; the file as it was is not taken either: {told}" if told else ""
        stand = "; ".join(map(str, self.standings(changes)))
        raise NotMoved(f"{refusal or 'the server did not take it'}{again}. {stand}")

    def standings(self, labels: Iterable[str]) -> tuple[Standing, ...]:
        """What file and server say of labels now."""
        in_file = self.config.labels(self._model)
        return tuple(Standing(label, in_file.get(label), self._server_says(label)) for label in labels)

    def _server_says(self, label: str) -> str:
        try:
            return _answers(self._service.labelled(self._model, label))
        except TpuserveError as error:
            return f"cannot be asked ({error.message})"

    def _stands(self, changes: Mapping[str, int | None]) -> bool:
        """Wait until the server answers so; False if it does not in time."""
        deadline_s = time.monotonic() + self._patience_s
        while not self._answers_so(changes):
            if time.monotonic() > deadline_s:
                return False
            time.sleep(_LOOK_S)
        return True

    def _answers_so(self, changes: Mapping[str, int | None]) -> bool:
        """Whether it does now; one that cannot be asked does not."""
        try:
            return all(self._service.labelled(self._model, label) == version for label, version in changes.items())
        except TpuserveError:
            return False

    def _tell(self) -> str:
        """Have the server take the file; why it does not, if it says so."""
        if self._apply == "poll":
            return ""
        try:
            self._service.reload(self.config.message)
        except TpuserveError as error:
            return f"the server refused: {error.message}"
        return ""

    def _read(self) -> ModelConfigText:
        try:
            return ModelConfigText(self._file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise BadConfig(getattr(error, "strerror", None) or "is no text") from None

    def _write(self) -> None:
        """In one step: a server that polls must never read half of it."""
        with tempfile.NamedTemporaryFile(
            "w", dir=self._file.parent, prefix=f".{self._file.name}.", delete=False
        ) as new:
            new.write(self.config.text)
            new.flush()
            os.fsync(new.fileno())
        shutil.copymode(self._file, new.name)
        os.replace(new.name, self._file)


def _answers(version: int | None) -> str:
    return "knows no such label" if version is None else f"answers with version {version}"
