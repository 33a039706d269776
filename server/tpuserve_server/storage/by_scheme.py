"""StorageByScheme: local directories and URIs behind one Storage."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from tpuserve_server.core.models.configuration_rules import describe_version_as_base
from tpuserve_server.core.models.model_config import ModelConfig
from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument
from tpuserve_server.core.terms.storage import FILE_SCHEME, Storage, VersionLocation, is_uri, parse_version
from tpuserve_server.storage.remote import RemoteStorage


class StorageByScheme:
    """Storage that forwards each base path to the storage for its scheme. Keeps no state."""

    def __init__(self, local: Storage, remote: RemoteStorage) -> None:
        """Send directories to `local` and URIs to `remote`."""
        self._local = local
        self._remote = remote

    def check(self, configs: Sequence[ModelConfig]) -> None:
        """Refuse base paths that this server can never read, before a client waits for them.

        Raises:
            FailedPrecondition: a base path needs an extra that is not installed.
            InvalidArgument: a base path has an unknown scheme or no bucket, or is a directory that is itself a version.
        """
        for config in configs:
            if config.ensemble is not None:
                continue
            _check_form(config)
            if is_uri(config.base_path):
                self.check_scheme(config.base_path)
            else:
                self._check_folder(config)

    def check_scheme(self, path: str) -> None:
        """Check that this server supports the scheme of a URI, without querying the store. Raises as `check`."""
        if is_uri(path):
            self._remote.check_scheme(path)

    def find_versions(self, base_path: str) -> Mapping[int, VersionLocation] | None:
        """Implement Storage.find_versions."""
        return self._of(base_path).find_versions(base_path.removeprefix(FILE_SCHEME))

    def fingerprint(self, location: VersionLocation) -> str:
        """Implement Storage.fingerprint."""
        return self._of(location.uri).fingerprint(location)

    def changed_unix_s(self, location: VersionLocation) -> float | None:
        """Implement Storage.changed_unix_s."""
        return self._of(location.uri).changed_unix_s(location)

    def missing(self, location: VersionLocation) -> str | None:
        """Implement Storage.missing."""
        return self._of(location.uri).missing(location)

    def refusal(self, location: VersionLocation) -> str:
        """Implement Storage.refusal."""
        return self._of(location.uri).refusal(location)

    def find_version_file(self, base_path: str) -> str:
        """Implement Storage.find_version_file."""
        return self._of(base_path).find_version_file(base_path.removeprefix(FILE_SCHEME))

    def fetch(self, location: VersionLocation) -> Path:
        """Implement Storage.fetch."""
        return self._of(location.uri).fetch(location)

    def release(self, path: Path) -> None:
        """Implement Storage.release."""
        (self._remote if self._remote.holds(path) else self._local).release(path)

    def _check_folder(self, config: ModelConfig) -> None:
        with contextlib.suppress(OSError):  # The source logs what it cannot read, and retries.
            folder = config.base_path.removeprefix(FILE_SCHEME)
            if self._local.find_versions(folder) == {} and (file := self._local.find_version_file(folder)):
                raise InvalidArgument(f"Model {config.name}: {describe_version_as_base(folder, file)}")

    def _of(self, uri: str) -> Storage:
        return self._remote if is_uri(uri) else self._local


def _check_form(config: ModelConfig) -> None:
    """Check that a URI has a bucket or a host, and that file:// has an absolute path. Raises InvalidArgument."""
    path = config.base_path
    if is_uri(path) and path.partition("://")[2][:1] in ("", "/"):
        raise InvalidArgument(f"Model {config.name}: base path {path} has no bucket or host after ://")
    if path.startswith(FILE_SCHEME) and not path.startswith(f"{FILE_SCHEME}/"):
        raise InvalidArgument(
            f"Model {config.name}: base path {path} is relative. Write an absolute path, such as file:///models/…"
        )


# Version number of an artifact whose directory has no number as its name.
_FIRST = 1


class ArtifactStorage(StorageByScheme):
    """Storage in which one base path, the artifact, may hold a model's files itself. Keeps no state.

    Version directories in the artifact take precedence.
    """

    def __init__(self, local: Storage, remote: RemoteStorage, artifact: str, setting: str) -> None:
        """Take the path or URI of the artifact, and the name of its setting for messages."""
        super().__init__(local, remote)
        self._artifact = artifact
        self._setting = setting

    def check(self, configs: Sequence[ModelConfig]) -> None:
        """Refuse base paths that this server can never read.

        Raises:
            FailedPrecondition: a base path needs an extra that is not installed.
            InvalidArgument: a base path has an unknown scheme, or is a directory that is itself a version.
        """
        super().check([config for config in configs if config.base_path != self._artifact])
        try:
            self.check_scheme(self._artifact)
        except (FailedPrecondition, InvalidArgument) as error:
            raise type(error)(f"{self._setting}: {error.message}") from None

    def find_versions(self, base_path: str) -> Mapping[int, VersionLocation] | None:
        """Implement Storage.find_versions. An artifact without version directories is a version if it has a model."""
        found = super().find_versions(base_path)
        if found != {} or base_path != self._artifact or not self.find_version_file(base_path):
            return found
        # A local version is a path, and a remote one a URI.
        folder = base_path.removeprefix(FILE_SCHEME).rstrip("/")
        number = parse_version(folder.rpartition("/")[2])
        return {_FIRST if number is None else number: VersionLocation(folder)}
