"""LocalStorage and VersionTree: base paths on this machine's file systems, and the files of a version."""

import hashlib
import itertools
import os
import stat
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from tpuserve_server.core.terms.errors import FailedPrecondition
from tpuserve_server.core.terms.storage import FILE_SCHEME, VersionLocation, index_versions, parse_version, show_name


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
            names = index_versions([entry.name for entry in entries if _is_version(entry)])
        if not folder.is_dir():
            # The base path was removed during the scan, so an empty result means nothing.
            return None
        return {number: VersionLocation(str(folder / found[-1]), found[:-1]) for number, found in names.items()}

    def fingerprint(self, location: VersionLocation) -> str:
        """Return a digest of the names, sizes and times of all files, readable or not."""
        return VersionTree.read(Path(location.uri)).fingerprint

    def changed_unix_s(self, location: VersionLocation) -> float | None:
        """Return the time of the last change. See `VersionTree`."""
        return VersionTree.read(Path(location.uri)).changed_unix_s

    def refusal(self, location: VersionLocation) -> str:
        """Return why the server opens no file of a version. See `VersionTree`."""
        return VersionTree.read(Path(location.uri)).refusal

    def missing(self, location: VersionLocation) -> str | None:
        """Describe what a version lacks. See `Storage.missing`."""
        return self._missing(Path(location.uri))

    def find_version_file(self, base_path: str) -> str:
        """Return a model's file that lies directly in a base path. See `Storage.find_version_file`."""
        return self._version_file(os.listdir(base_path))

    def fetch(self, location: VersionLocation) -> Path:
        """Return the directory itself.

        Raises:
            FailedPrecondition: the directory has a refusal.
        """
        if refusal := self.refusal(location):
            raise FailedPrecondition(refusal)
        return Path(location.uri)

    def release(self, path: Path) -> None:
        """Do nothing, because `fetch` copied nothing."""


def directory_stamp(base_path: str) -> tuple[int, ...] | None:
    """Return numbers that change when an entry of a directory is added, removed or renamed, or None without one.

    Cheap. Some network file systems do not change them.
    """
    try:
        info = os.stat(base_path.removeprefix(FILE_SCHEME))
    except OSError:
        return None
    return (info.st_dev, info.st_ino, info.st_mtime_ns, info.st_ctime_ns)


def _is_version(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry of a base path is a version directory, or a link that cannot be followed.

    Such a link is a version that fails to load with its reason. An error of one entry must not hide the others.
    """
    if parse_version(entry.name) is None:
        return False
    try:
        return entry.is_dir()
    except OSError:
        return True


# Maximum number of files and directories in a version. The source lists them at each poll.
MAX_ENTRIES: Final = 10_000
# Maximum number of nested directories.
MAX_DEPTH: Final = 32
_ROOT = "the version directory"
_KINDS: Final = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(frozen=True, slots=True)
class VersionTree:
    """A version directory as it was at one moment.

    `names` are its files relative to the directory, with slashes, including those in linked directories. `fingerprint`
    changes when a file is added, removed, resized or written. `refusal` is the reason against opening the files, for
    clients, or "". `changed_unix_s` is the newest time of a change to a file or directory, of its contents or of its
    inode, because a copy may set the time of its contents back.
    """

    names: tuple[str, ...]
    fingerprint: str
    refusal: str
    changed_unix_s: float

    @classmethod
    def read(cls, version: Path) -> Self:
        """List a version directory. Blocks for at most MAX_ENTRIES entries. Never raises an OSError.

        The tree is refused if it has a file that is neither regular nor a directory, or a link that leads out of the
        model's base path or in a circle. Links within the base path are allowed, because Kubernetes mounts files
        through them. The version directory may itself be a link, because the operator creates it.
        """
        walk = _Walk(version)
        lines = sorted(walk.run())
        digest = hashlib.sha256("\n".join([*lines, walk.refusal]).encode(errors="replace"))
        return cls(tuple(walk.names), digest.hexdigest(), walk.refusal, walk.changed_ns / 1e9)


@dataclass(frozen=True, slots=True)
class _Folder:
    """A directory to list. `prefix` begins the names of its entries. `within` identifies it and those around it."""

    path: str
    prefix: str
    within: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class _Walk:
    """One listing of a version. Keeps the first reason for a refusal."""

    version: Path
    names: list[str] = field(default_factory=list)
    refusal: str = ""
    changed_ns: int = 0
    _left: int = MAX_ENTRIES
    # Real paths of the directories that a link may lead into, once a link needs them.
    _allowed: tuple[str, ...] | None = None

    def run(self) -> Iterator[str]:
        """Yield a line for each file, with what a change of the file changes."""
        pending = self._root()
        while pending:
            folder = pending.pop()
            for entry in self._list(folder):
                name = folder.prefix + entry.name
                info = self._look_at(name, entry)
                if info is None:
                    continue
                self._note_change(info)
                if stat.S_ISDIR(info.st_mode):
                    pending += self._enter(name, entry.path, folder, info)
                    continue
                self.names.append(name)
                if kind := _KINDS.get(stat.S_IFMT(info.st_mode)):
                    self._refuse(name, f"is {kind}. A version may contain only regular files and directories")
                yield f"{name}:{info.st_size}:{info.st_mtime_ns}"

    def _root(self) -> list[_Folder]:
        try:
            info = os.stat(self.version)
        except OSError as error:
            self._refuse(_ROOT, f"cannot be read: {error.strerror}")
            return []
        self._note_change(info)
        return [_Folder(str(self.version), "", ((info.st_dev, info.st_ino),))]

    def _note_change(self, info: os.stat_result) -> None:
        self.changed_ns = max(self.changed_ns, info.st_mtime_ns, info.st_ctime_ns)

    def _list(self, folder: _Folder) -> list[os.DirEntry[str]]:
        """Return the entries in the order of their names, up to the limit."""
        if self._left < 0:
            return []
        try:
            with os.scandir(folder.path) as listing:
                entries = list(itertools.islice(listing, self._left + 1))
        except OSError as error:
            self._refuse(folder.prefix.rstrip("/") or _ROOT, f"cannot be read: {error.strerror}")
            return []
        self._left -= len(entries)
        if self._left < 0:
            self._refuse(_ROOT, f"has more than {MAX_ENTRIES} files and directories")
        return sorted(entries, key=lambda entry: entry.name)

    def _look_at(self, name: str, entry: os.DirEntry[str]) -> os.stat_result | None:
        """Return the status of a file, or of a link's target. None if the file was removed meanwhile."""
        try:
            info = entry.stat(follow_symlinks=False)
            return self._follow(name, entry.path, info) if stat.S_ISLNK(info.st_mode) else info
        except FileNotFoundError:
            return None
        except OSError as error:
            self._refuse(name, f"cannot be read: {error.strerror}")
            return None

    def _follow(self, name: str, path: str, link: os.stat_result) -> os.stat_result:
        # Use realpath: Path.resolve raises RuntimeError for circular links.
        if self._allowed is None:
            self._allowed = tuple(os.path.realpath(folder) for folder in (self.version.parent, self.version))
        target = Path(os.path.realpath(path))
        if not any(target.is_relative_to(folder) for folder in self._allowed):
            self._refuse(name, "is a link to a file outside the model's base path. Put the file inside it")
            return link
        try:
            return os.stat(path)
        except FileNotFoundError:
            # A broken link counts as itself.
            return link
        except OSError as error:
            self._refuse(name, f"is a link that cannot be followed: {error.strerror}")
            return link

    def _enter(self, name: str, path: str, folder: _Folder, info: os.stat_result) -> list[_Folder]:
        inode = (info.st_dev, info.st_ino)
        if inode in folder.within:
            self._refuse(name, "is a link to a directory that contains it")
            return []
        if len(folder.within) > MAX_DEPTH:
            self._refuse(name, f"is nested in more than {MAX_DEPTH} directories")
            return []
        return [_Folder(path, f"{name}/", (*folder.within, inode))]

    def _refuse(self, name: str, why: str) -> None:
        self.refusal = self.refusal or f"{show_name(name)} {why}"
