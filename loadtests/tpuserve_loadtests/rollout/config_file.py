"""The file of a server's configuration, which a rollout replaces in one step."""

import os
import shutil
import tempfile
from pathlib import Path

from tpuserve_loadtests.rollout.model_config_text import BadConfig, ModelConfigText


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
