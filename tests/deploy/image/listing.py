"""The files of an image, with owner and mode."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or directory, by its path in the image. Links have the mode of the link."""

    path: str
    mode: int
    user: int
    size: int

    @property
    def sets_user(self) -> bool:
        """Whether a program runs as the file's owner or group."""
        return stat.S_ISREG(self.mode) and bool(self.mode & (stat.S_ISUID | stat.S_ISGID))

    @property
    def is_writable_by_all(self) -> bool:
        """Whether any user can change it. Links have no mode."""
        return not stat.S_ISLNK(self.mode) and bool(self.mode & stat.S_IWOTH)


def entries(root: Path) -> Iterator[Entry]:
    """Yield all files and directories below the root of an image."""
    for folder, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = Path(folder, name)
            status = path.lstat()
            yield Entry(f"/{path.relative_to(root)}", status.st_mode, status.st_uid, status.st_size)
