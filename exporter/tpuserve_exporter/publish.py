"""Making a version appear under its base path: whole or not at all, and never over another's work.

A version is written under a hidden name in the same directory (servers read numbers only) and renamed. A rename onto a
directory with files in it fails, so of two exporters that take one number, one gets it and the other learns of it.
"""

import contextlib
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from tpuserve_exporter.errors import PublishFailed

_PREFIX = ".tpuserve-export-"
_TAKEN = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR})


@contextlib.contextmanager
def staging_directory(base: Path) -> Iterator[Path]:
    """A path, in a hidden directory of `base`, to write a version to. Whatever is left of it afterwards is removed.

    `base` and its parents are made if need be, and those made are removed again if they stay empty. Raises
    PublishFailed if they cannot be written.
    """
    with _directory(base):
        try:
            hidden = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        except OSError as error:
            raise PublishFailed(f"cannot write to {base}: {error.strerror}") from error
        try:
            yield hidden / "version"
        finally:
            shutil.rmtree(hidden, ignore_errors=True)


@contextlib.contextmanager
def _directory(base: Path) -> Iterator[None]:
    absent = [path for path in (base, *base.parents) if not os.path.lexists(path)]
    try:
        try:
            base.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PublishFailed(f"cannot write to {base}: {error.strerror}") from error
        yield
    finally:
        for path in absent:
            with contextlib.suppress(OSError):  # not there; or not empty: a version was published, by us or another
                path.rmdir()


def check_free(base: Path, version: int | Literal["next", "timestamp"]) -> None:
    """Refuse a taken number before the work is done. Raises PublishFailed."""
    if isinstance(version, int) and os.path.lexists(base / str(version)):
        raise PublishFailed(f"version {version} of {base.name} is taken: a published version never changes")


def next_version(base: Path) -> int:
    """One more than the highest number there, be it a version or a file in the way."""
    if not base.is_dir():
        return 1
    return max((int(path.name) for path in base.iterdir() if path.name.isdecimal()), default=0) + 1


def publish(staged: Path, base: Path, version: int | Literal["next", "timestamp"]) -> int:
    """Rename `staged` to its number, once it is on disk, and return the number. Raises PublishFailed."""
    _settle(staged)
    while True:
        number = _choose(base, version)
        if _rename(staged, base / str(number)):
            _sync(base)
            return number
        check_free(base, version)  # or else another exporter was first: take the number after its


def _rename(staged: Path, target: Path) -> bool:
    """False if the target is taken. Looking first is for an empty directory, which a rename would silently replace."""
    if os.path.lexists(target):
        return False
    try:
        os.rename(staged, target)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise PublishFailed(f"cannot publish {target}: {error.strerror}") from error
    return True


def _choose(base: Path, version: int | Literal["next", "timestamp"]) -> int:
    """A timestamp that is taken, or behind what is there, goes on counting from the highest."""
    if isinstance(version, int):
        return version
    following = next_version(base)
    return following if version == "next" else max(int(time.time()), following)


def _settle(staged: Path) -> None:
    """Make everything readable for a server under another user, and flush it: the rename must not reach disk first."""
    for where, _, files in os.walk(staged, topdown=False):
        for name in files:
            os.chmod(os.path.join(where, name), 0o644)
            _sync(Path(where, name))
        os.chmod(where, 0o755)
        _sync(Path(where))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
