"""ArtifactStorage: one path of the storage may be a version itself, whatever its name."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tpuserve_server.core.models.model_config import ModelConfig
from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument
from tpuserve_server.core.terms.storage import FILE_SCHEME, VersionLocation, parse_version
from tpuserve_server.storage.by_scheme import StorageByScheme

# Version number of an artifact whose directory has no number as its name.
_FIRST = 1


class ArtifactStorage:
    """Storage in which one base path, the artifact, may hold a model's files itself. Keeps no state.

    Version directories in the artifact take precedence.
    """

    def __init__(self, storage: StorageByScheme, artifact: str, setting: str) -> None:
        """Take the path or URI of the artifact, and the name of its setting for messages."""
        self._storage = storage
        self._artifact = artifact
        self._setting = setting

    def check(self, configs: Sequence[ModelConfig]) -> None:
        """Refuse base paths that this server can never read.

        Raises:
            FailedPrecondition: a base path needs an extra that is not installed.
            InvalidArgument: a base path has an unknown scheme, or is a directory that is itself a version.
        """
        self._storage.check([config for config in configs if config.base_path != self._artifact])
        try:
            self._storage.check_scheme(self._artifact)
        except (FailedPrecondition, InvalidArgument) as error:
            raise type(error)(f"{self._setting}: {error.message}") from None

    def find_versions(self, base_path: str) -> Mapping[int, VersionLocation] | None:
        """Implement Storage.find_versions. An artifact without version directories is a version if it has a model."""
        found = self._storage.find_versions(base_path)
        if found != {} or base_path != self._artifact or not self._storage.find_version_file(base_path):
            return found
        # A local version is a path, and a remote one a URI.
        folder = base_path.removeprefix(FILE_SCHEME).rstrip("/")
        number = parse_version(folder.rpartition("/")[2])
        return {_FIRST if number is None else number: VersionLocation(folder)}

    def fingerprint(self, location: VersionLocation) -> str:
        """Implement Storage.fingerprint."""
        return self._storage.fingerprint(location)

    def missing(self, location: VersionLocation) -> str | None:
        """Implement Storage.missing."""
        return self._storage.missing(location)

    def refusal(self, location: VersionLocation) -> str:
        """Implement Storage.refusal."""
        return self._storage.refusal(location)

    def find_version_file(self, base_path: str) -> str:
        """Implement Storage.find_version_file."""
        return self._storage.find_version_file(base_path)

    def fetch(self, location: VersionLocation) -> Path:
        """Implement Storage.fetch."""
        return self._storage.fetch(location)

    def release(self, path: Path) -> None:
        """Implement Storage.release."""
        self._storage.release(path)
