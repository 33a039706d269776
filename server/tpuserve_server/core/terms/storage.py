"""Storage: where versions lie, and how they reach this machine's disk. Cloud storage has a separate package.

`without_secrets` hides the secrets of a URI in a message.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeAlias

# A version's number is an int64 (servable_id.h), parsed like absl::SimpleAtoi does.
_NUMBER = re.compile(r"[+-]?[0-9]+")
_INT64 = range(-(2**63), 2**63)
_MAX_DIGITS = 255


@dataclass(frozen=True, slots=True)
class VersionLocation:
    """The place of one version: an absolute directory, or a URI without a trailing slash.

    `shadowed` holds the names of ignored directories in the same base path that mean the same number.
    """

    uri: str
    shadowed: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.uri


class Storage(Protocol):
    """A place that holds base paths. Several threads use it at once. Every method may block on a disk or a network.

    Obligations:

    1. An error in one base path is raised by the call that hits it, and affects no other base path.
    2. A path that `fetch` returned stays in place until `release` has been called as often as `fetch` returned it.
    """

    def find_versions(self, base_path: str) -> Mapping[int, VersionLocation] | None:
        """Return the versions by number, or None if `base_path` does not exist. `index_versions` parses the numbers.

        Raises:
            OSError: the base path cannot be read now.
        """
        ...

    def fingerprint(self, location: VersionLocation) -> str:
        """Return a digest that changes when a file is added, removed, resized or written. Raises OSError."""
        ...

    def changed_unix_s(self, location: VersionLocation) -> float | None:
        """Return when a file of a version was last added or written, as Unix time by the clock of the storage.

        Return None if that is unknown. Raises OSError.
        """
        ...

    def missing(self, location: VersionLocation) -> str | None:
        """Describe what a version lacks, for clients, without the name of its directory.

        Return "" if a manifest lists all files and they exist. Return None if no file is known to be missing, but there
        is no manifest. Raises OSError.
        """
        ...

    def refusal(self, location: VersionLocation) -> str:
        """Return why the server opens no file of a version, for clients, without the name of its directory, or "".

        `fetch` refuses such a version. Raises OSError.
        """
        ...

    def find_version_file(self, base_path: str) -> str:
        """Return the name of a model's file that lies directly in a base path without versions, or "".

        A remote storage answers from the listing that `find_versions` made. Raises OSError.
        """
        ...

    def fetch(self, location: VersionLocation) -> Path:
        """Return the whole version as a directory on this machine. Slow; a loading thread calls it before the load.

        Raises:
            ServingError: with the reason, as status will show it.
        """
        ...

    def release(self, path: Path) -> None:
        """Release a path that `fetch` returned, because its version was unloaded or failed to load."""
        ...


def index_versions(names: Iterable[str]) -> dict[int, tuple[str, ...]]:
    """Return directory names by the version number they mean. The last of several names is the one to use.

    Any int64 is a number, with or without leading zeros. Other names are ignored. The last in alphabetical order
    wins, `1` over `01`, like in upstream's IndexChildrenByVersion
    (sources/storage_path/file_system_storage_path_source.cc).
    """
    found: dict[int, tuple[str, ...]] = {}
    for name in sorted(names):
        number = parse_version(name)
        if number is not None:
            found[number] = (*found.get(number, ()), name)
    return found


def show_name(name: str) -> str:
    """Return a file's name in a form for messages, with bytes that are not UTF-8 escaped."""
    return name.encode(errors="backslashreplace").decode()


def parse_version(name: str) -> int | None:
    """Return the version number that a directory's name means, or None if it means none."""
    # A file system's names are short enough for int(), but an object store's are not.
    if len(name) > _MAX_DIGITS or not _NUMBER.fullmatch(name):
        return None
    number = int(name)
    return number if number in _INT64 else None


FILE_SCHEME: Final = "file://"

# File that a flag names: a path, `file:///…`, or the URI of an object in a store.
FileName: TypeAlias = str | Path


def is_uri(path: str) -> bool:
    """Return whether a base path is in a store."""
    return "://" in path and not path.startswith(FILE_SCHEME)


# User and password of a URI, up to the last "@" if a password contains a slash, and its query, which may have a key or
# a signature (RFC 3986).
_USER: Final = re.compile(r"(?<=//)[^/@\s]*(?::\S*)?@")
_QUERY: Final = re.compile(r"(?<=\?)\S+")
_HIDDEN: Final = "***"


def without_secrets(text: str) -> str:
    """Return `text` with `***` for the user and the query of a URI."""
    if "//" not in text:
        return text
    return _QUERY.sub(_HIDDEN, _USER.sub(f"{_HIDDEN}@", text))
