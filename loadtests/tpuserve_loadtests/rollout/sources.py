"""The sources of truth of a configuration: where a rollout reads and writes the text that the servers follow."""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote

from tpuserve_loadtests.rollout.model_config_text import BadConfig, ModelConfigText
from tpuserve_loadtests.rollout.programs import KubernetesObject, run_git

if TYPE_CHECKING:
    from collections.abc import Mapping


class Source(Protocol):
    """A text that servers read. Its text appears in messages as its name. Belongs to one thread."""

    def read(self) -> ModelConfigText:
        """Read the text. Raises BadConfig if it cannot be read or is invalid."""

    def check_writable(self) -> None:
        """Raise BadConfig if `write` would certainly fail."""

    def write(self, config: ModelConfigText, reason: str) -> None:
        """Replace the text that the last `read` returned, in one step. `reason` is for its history.

        Raises BadConfig, with the old text in place.
        """


class ConfigFile:
    """A model_config_file."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()  # resolved, so that a symbolic link remains a link

    def read(self) -> ModelConfigText:
        try:
            return ModelConfigText(self._path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise BadConfig(getattr(error, "strerror", None) or "not a text file") from None

    def check_writable(self) -> None:
        if not (os.access(self._path, os.W_OK) and os.access(self._path.parent, os.W_OK)):
            raise BadConfig("the file and its directory must be writable, because the rollout replaces the file")

    def write(self, config: ModelConfigText, reason: str) -> None:
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


class CommittedFile(ConfigFile):
    """A model_config_file in a checkout. Each change is a commit, which is pushed if the branch has an upstream.

    A GitOps controller then brings the file to the servers.
    """

    def check_writable(self) -> None:
        super().check_writable()
        if self._git("status", "--porcelain", "--", str(self._path)):
            raise BadConfig("the file has changes that are not committed. Commit them first")

    def write(self, config: ModelConfigText, reason: str) -> None:
        super().write(config, reason)
        path = str(self._path)
        try:
            self._git("commit", "--quiet", "--message", reason, "--", path)
        except BadConfig as error:
            self._git("checkout", "--quiet", "HEAD", "--", path)
            raise BadConfig(f"cannot commit: {error}") from None
        try:
            self._push()
        except BadConfig as error:
            self._git("reset", "--quiet", "--soft", "HEAD~1")
            self._git("checkout", "--quiet", "HEAD", "--", path)
            raise BadConfig(f"cannot push the commit: {error}") from None

    def _push(self) -> None:
        """Push the commit, on top of commits that others have pushed meanwhile. Raises BadConfig."""
        if not self._git(
            "for-each-ref", "--format=%(upstream)", self._git("rev-parse", "--symbolic-full-name", "HEAD")
        ):
            return
        try:
            self._git("push", "--quiet")
        except BadConfig:
            try:
                self._git("pull", "--quiet", "--rebase")
            except BadConfig:
                with suppress(BadConfig):  # a pull that has not begun to rebase
                    self._git("rebase", "--abort")
                raise
            self._git("push", "--quiet")

    def _git(self, *arguments: str) -> str:
        return run_git("-C", str(self._path.parent), *arguments)


_DEFAULT_KEY: Final = "models.config"


class ConfigMapKey:
    """A key of a ConfigMap. A write fails with Conflict if another client changed the ConfigMap since the last read."""

    def __init__(self, namespace: str, name: str, key: str = _DEFAULT_KEY) -> None:
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps/{quote(name, safe='')}"
        self._object = KubernetesObject(path)
        self._shown = f"ConfigMap {namespace}/{name}"
        self._key = key
        self._read: Mapping[str, Any] = {}  # the object of the last read

    def read(self) -> ModelConfigText:
        found = self._object.read()
        text = (found.get("data") or {}).get(self._key)
        if text is None:
            keys = ", ".join(sorted(found.get("data") or {})) or "none"
            raise BadConfig(f"no key {self._key}; its keys: {keys}. Set --source configmap:NAMESPACE/NAME/KEY")
        self._read = found
        return ModelConfigText(text)

    def check_writable(self) -> None:
        if self._read.get("immutable"):
            raise BadConfig("the ConfigMap is immutable")
        self._object.replace(self._read, dry_run=True)

    def write(self, config: ModelConfigText, reason: str) -> None:
        self._read = self._object.replace({**self._read, "data": {**self._read["data"], self._key: config.text}})

    def __str__(self) -> str:
        return f"{self._shown}, key {self._key}"
