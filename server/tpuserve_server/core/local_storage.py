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
    """Versions are loaded from where they lie: nothing is copied. Keeps no state."""

    def __init__(
        self,
        missing: Callable[[Path], str | None],
        *,
        version_file: Callable[[Collection[str]], str] = lambda _names: "",
    ) -> None:
        """Take what knows a version's files: `missing` as Storage has it, of the version's folder.

        `version_file` picks, from the names in a folder, one that only a version has; empty for none.
        """
        self._missing = missing
        self._version_file = version_file

    def find_versions(self, base_path: str) -> dict[int, VersionLocation] | None:
        """Version folders by number; None if `base_path` is not a folder. Raises OSError when it cannot be read."""
        folder = Path(base_path)
        if not folder.is_dir():
            return None
        with os.scandir(folder) as entries:
            names = index_versions([entry.name for entry in entries if entry.is_dir()])
        if not folder.is_dir():
            # Taken away meanwhile, and its links with it: that it looked empty says nothing.
            return None
        return {number: VersionLocation(str(folder / found[-1]), found[:-1]) for number, found in names.items()}

    def fingerprint(self, location: VersionLocation) -> str:
        """By the names, sizes and times of all files, readable or not."""
        return fingerprint_tree(Path(location.uri))

    def missing(self, location: VersionLocation) -> str | None:
        """As Storage has it."""
        return self._missing(Path(location.uri))

    def find_version_file(self, base_path: str) -> str:
        """As Storage has it."""
        return self._version_file(os.listdir(base_path))

    def fetch(self, location: VersionLocation) -> Path:
        """The folder itself.

        Raises:
            FailedPrecondition: it holds a link that leads out of the model.
        """
        path = Path(location.uri)
        refuse_links_out(path)
        return path

    def release(self, path: Path) -> None:
        """Nothing was taken."""


def refuse_links_out(version: Path) -> None:
    """Refuse a version with a link to what lies neither in it nor beside it.

    What is in a version is its author's; what the server may read is not for the author to say. Links within the base
    path are how Kubernetes mounts files, and a version folder that is a link itself is the operator's.

    Raises:
        FailedPrecondition: naming the first such link, and not where it leads.
    """
    # By realpath: Path.resolve raises RuntimeError for links in a circle.
    allowed = [os.path.realpath(folder) for folder in (version.parent, version)]
    for file in sorted(version.rglob("*")):
        if file.is_symlink() and not any(Path(os.path.realpath(file)).is_relative_to(folder) for folder in allowed):
            name = show_name(str(file.relative_to(version)))
            raise FailedPrecondition(f"{name} is a link that leads out of the model's base path; put the file there")


def fingerprint_tree(path: Path) -> str:
    """A digest that changes when a file below `path` is added, removed, resized or written, readable or not."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        # Of a link what it points to, as that is what will be loaded; of one that points nowhere, itself.
        with contextlib.suppress(OSError):
            info = file.stat() if file.exists() else file.lstat()
            if not stat.S_ISDIR(info.st_mode):
                digest.update(f"{file.relative_to(path)}:{info.st_size}:{info.st_mtime_ns}\n".encode(errors="replace"))
    return digest.hexdigest()
