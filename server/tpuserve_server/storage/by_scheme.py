"""StorageByScheme: local folders and URIs behind one Storage."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from tpuserve_server.core.base_path import describe_version_as_base
from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.core.model_config import ModelConfig
from tpuserve_server.core.storage import Storage, VersionLocation
from tpuserve_server.storage.remote import RemoteStorage

_FILE = "file://"


def is_uri(path: str) -> bool:
    """Whether a base path lies in a store. `file://` is another way to write a folder, as in TensorFlow."""
    return "://" in path and not path.startswith(_FILE)


class StorageByScheme:
    """Hands each base path to the storage that knows it. Keeps no state."""

    def __init__(self, local: Storage, remote: RemoteStorage) -> None:
        """Folders go to `local`, URIs to `remote`."""
        self._local = local
        self._remote = remote

    def check(self, configs: Sequence[ModelConfig]) -> None:
        """Refuse base paths that nothing here could ever read, before anybody waits for them.

        Raises:
            FailedPrecondition: one needs an extra that is not installed.
            InvalidArgument: one has an unknown scheme, or is a folder that is itself a version.
        """
        for config in configs:
            if is_uri(config.base_path):
                self._remote.check_scheme(config.base_path)
            else:
                self._check_folder(config)

    def find_versions(self, base_path: str) -> Mapping[int, VersionLocation] | None:
        """As Storage has it."""
        return self._of(base_path).find_versions(base_path.removeprefix(_FILE))

    def fingerprint(self, location: VersionLocation) -> str:
        """As Storage has it."""
        return self._of(location.uri).fingerprint(location)

    def missing(self, location: VersionLocation) -> str | None:
        """As Storage has it."""
        return self._of(location.uri).missing(location)

    def find_version_file(self, base_path: str) -> str:
        """As Storage has it."""
        return self._of(base_path).find_version_file(base_path.removeprefix(_FILE))

    def fetch(self, location: VersionLocation) -> Path:
        """As Storage has it."""
        return self._of(location.uri).fetch(location)

    def release(self, path: Path) -> None:
        """As Storage has it."""
        (self._remote if self._remote.holds(path) else self._local).release(path)

    def _check_folder(self, config: ModelConfig) -> None:
        with contextlib.suppress(OSError):  # The source logs what it cannot read, and retries.
            folder = config.base_path.removeprefix(_FILE)
            if self._local.find_versions(folder) == {} and (file := self._local.find_version_file(folder)):
                raise InvalidArgument(f"Model {config.name}: {describe_version_as_base(folder, file)}")

    def _of(self, uri: str) -> Storage:
        return self._remote if is_uri(uri) else self._local
