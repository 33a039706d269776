"""Storage: where versions lie, and how one gets to this machine's disk. A store in the cloud has its own package."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

# A version's number is an int64 (servable_id.h), read as absl::SimpleAtoi reads one.
_NUMBER = re.compile(r"[+-]?[0-9]+")
_INT64 = range(-(2**63), 2**63)
_MAX_DIGITS = 255


@dataclass(frozen=True, slots=True)
class VersionLocation:
    """Where one version lies: an absolute folder, or a URI without a trailing slash.

    `shadowed` are the names of folders beside it that stand for the same number and are ignored.
    """

    uri: str
    shadowed: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.uri


class Storage(Protocol):
    """A place that holds base paths. Used by several threads at once. Every method may block on a disk or a network.

    Obligations:

    1. An error of one base path is raised from the call that met it, and touches no other.
    2. What `fetch` returned stays in place until `release` was called as often as `fetch` returned it.
    """

    def find_versions(self, base_path: str) -> Mapping[int, VersionLocation] | None:
        """Versions by number; None if `base_path` does not exist. `index_versions` says which names are numbers.

        Raises:
            OSError: the base path cannot be read now.
        """
        ...

    def fingerprint(self, location: VersionLocation) -> str:
        """A digest that changes when a file of the version is added, removed, resized or written. Raises OSError."""
        ...

    def missing(self, location: VersionLocation) -> str | None:
        """Describe what a version lacks, for clients, without the name of its folder.

        Empty: a manifest lists all files, and they are there. None: no file is known to be missing, but there is no
        manifest. Raises OSError.
        """
        ...

    def find_version_file(self, base_path: str) -> str:
        """Return the name of a model's file that lies in a base path without versions; empty for none.

        A remote storage answers from the listing that `find_versions` made. Raises OSError.
        """
        ...

    def fetch(self, location: VersionLocation) -> Path:
        """The version as a folder on this machine, whole; called by a loading thread before the load. Slow.

        Raises:
            ServingError: with the reason, as status will show it.
        """
        ...

    def release(self, path: Path) -> None:
        """What `fetch` returned is no longer needed: its version was unloaded, or failed to load."""
        ...


def index_versions(names: Iterable[str]) -> dict[int, tuple[str, ...]]:
    """Folder names by the version number they stand for; the last of several is the one to take.

    Any int64, leading zeros allowed; other names are left out. Of `01` and `1` the last in alphabetical order counts,
    as upstream's IndexChildrenByVersion (sources/storage_path/file_system_storage_path_source.cc).
    """
    found: dict[int, tuple[str, ...]] = {}
    for name in sorted(names):
        number = parse_version(name)
        if number is not None:
            found[number] = (*found.get(number, ()), name)
    return found


def show_name(name: str) -> str:
    """Write a file's name so that a message may hold it: bytes that are not UTF-8 are escaped."""
    return name.encode(errors="backslashreplace").decode()


def parse_version(name: str) -> int | None:
    """The version number that a folder's name stands for, if it is one."""
    # A file system's names are short enough for int(); an object store's are not.
    if len(name) > _MAX_DIGITS or not _NUMBER.fullmatch(name):
        return None
    number = int(name)
    return number if number in _INT64 else None
