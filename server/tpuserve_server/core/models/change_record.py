"""ChangeRecord: what clients changed in the configuration, in a file that survives the process.

The next process of the same server reads it and starts with these changes. Without it, the end of a process would
silently undo reloads, such as a label that a rollout has moved.
"""

import base64
import hashlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

_FILE: Final = "changes.json"


@dataclass(frozen=True, slots=True)
class Changes:
    """The last accepted HandleReloadConfigRequest, or None if there was none since the operator's configuration.

    `unloaded` are the models that clients have unloaded since.
    """

    request: bytes | None = None
    unloaded: tuple[str, ...] = ()


class ChangeRecord:
    """The record of one process. ConfiguredModels writes it under its lock."""

    def __init__(self, folder: Path) -> None:
        """Keep the record in `folder`. Reads nothing."""
        self._path = folder / _FILE
        self.rebase("")

    def read(self, basis: str) -> Changes:
        """Return the changes to the operator's configuration, whose text is `basis`.

        There are none if the last process had another text: the operator's configuration is then newer.
        """
        self.rebase(basis)
        try:
            fields = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return Changes()
        request, unloaded = fields["request"], tuple(fields["unloaded"])
        if fields["basis"] != self._basis:
            if request is not None or unloaded:
                logger.warning("The model configuration file is newer than the last reload, and replaces it")
            return Changes()
        return Changes(None if request is None else base64.b64decode(request), unloaded)

    def rebase(self, basis: str) -> None:
        """Take another text of the operator's configuration, which later changes refer to."""
        self._basis = hashlib.sha256(basis.encode()).hexdigest()

    def write(self, request: bytes | None, unloaded: Sequence[str]) -> None:
        """Replace the record in one step. A failure is logged, because the change is already in force."""
        fields = {
            "basis": self._basis,
            "request": None if request is None else base64.b64encode(request).decode(),
            "unloaded": list(unloaded),
        }
        new = self._path.with_suffix(".new")
        try:
            new.write_text(json.dumps(fields), encoding="utf-8")
            os.replace(new, self._path)
        except OSError as error:
            logger.error(
                "Cannot record the changed configuration: %s. A new process would start without it",
                error.strerror or error,
            )
