"""LocalStorage: base paths on this machine's file systems."""

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Collection
from pathlib import Path

from tpuserve_server.core.errors import FailedPrecondition
from tpuserve_server.core.storage import VersionLocation, index_versions, show_name


class LocalStorage:
    """Storage that loads versions from their place and copies nothing. Keeps no state."""

    def __init__(
        self,
        missing: Callable[[Path], str | None],
        *,
        version_file: Callable[[Collection[str]], str] = lambda _names: "",
    ) -> None:
        """Use the rules of a version's files: `missing` as in Storage, for the version's directory.

        `version_file` picks, from the names in a directory, one that only a version has, or returns "".
        """
        self._missing = missing
        self._version_file = version_file

    def find_versions(self, base_path: str) -> dict[int, VersionLocation] | None:
        """Return version directories by number, or None if `base_path` is not a directory.

        Raises:
            OSError: the base path cannot be read.
        """
        folder = Path(base_path)
        if not folder.is_dir():
            return None
        with os.scandir(folder) as entries:
            names = index_versions([entry.name for entry in entries if entry.is_dir()])
        if not folder.is_dir():
            # The base path was removed during the scan, so an empty result means nothing.
            return None
        return {number: VersionLocation(str(folder / found[-1]), found[:-1]) for number, found in names.items()}

    def fingerprint(self, location: VersionLocation) -> str:
        """Return a digest of the names, sizes and times of all files, readable or not."""
        return fingerprint_tree(Path(location.uri))

    def missing(self, location: VersionLocation) -> str | None:
        """Describe what a version lacks. See `Storage.missing`."""
        return self._missing(Path(location.uri))

    def find_version_file(self, base_path: str) -> str:
        """Return a model's file that lies directly in a base path. See `Storage.find_version_file`."""
        return self._version_file(os.listdir(base_path))

    def fetch(self, location: VersionLocation) -> Path:
        """Return the directory itself.

        Raises:
            FailedPrecondition: the directory holds a link that leads out of the model's base path.
        """
        path = Path(location.uri)
        refuse_links_out(path)
        return path

    def release(self, path: Path) -> None:
        """Do nothing, because `fetch` copied nothing."""


def refuse_links_out(version: Path) -> None:
    """Refuse a version with a link that leads out of the model's base path.

    The author of a version controls its contents, but must not decide which files the server reads. Links within the
    base path are allowed, because Kubernetes mounts files through them. The version directory may itself be a link,
    because the operator creates it.

    Raises:
        FailedPrecondition: naming the first such link, but not its target.
    """
    # Use realpath: Path.resolve raises RuntimeError for circular links.
    allowed = [os.path.realpath(folder) for folder in (version.parent, version)]
    for file in sorted(version.rglob("*")):
        if file.is_symlink() and not any(Path(os.path.realpath(file)).is_relative_to(folder) for folder in allowed):
            name = show_name(str(file.relative_to(version)))
            raise FailedPrecondition(
                f"{name} is a link to a file outside the model's base path. Put the file inside it"
            )


def fingerprint_tree(path: Path) -> str:
    """Return a digest that changes when a file below `path` is added, removed, resized or written, readable or not."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        # A link counts as its target, because the target will be loaded. A broken link counts as itself.
        with contextlib.suppress(OSError):
            info = file.stat() if file.exists() else file.lstat()
            if not stat.S_ISDIR(info.st_mode):
                digest.update(f"{file.relative_to(path)}:{info.st_size}:{info.st_mtime_ns}\n".encode(errors="replace"))
    return digest.hexdigest()
