"""VersionTree: the files in a version directory, and the reason why the server does not open them.

The author of a version controls its contents. The server must not block, run out of memory or read other files because
of them. This module only lists directories and reads the status of files. It opens none.
"""

import hashlib
import itertools
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from tpuserve_server.core.terms.storage import show_name

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
    clients, or "".
    """

    names: tuple[str, ...]
    fingerprint: str
    refusal: str

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
        return cls(tuple(walk.names), digest.hexdigest(), walk.refusal)


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
    _left: int = MAX_ENTRIES
    _allowed: tuple[str, ...] = ()

    def run(self) -> Iterator[str]:
        """Yield a line for each file, with what a change of the file changes."""
        # Use realpath: Path.resolve raises RuntimeError for circular links.
        self._allowed = tuple(os.path.realpath(folder) for folder in (self.version.parent, self.version))
        pending = self._root()
        while pending:
            folder = pending.pop()
            for entry in self._list(folder):
                name = folder.prefix + entry.name
                info = self._look_at(name, entry)
                if info is None:
                    continue
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
        return [_Folder(str(self.version), "", ((info.st_dev, info.st_ino),))]

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
