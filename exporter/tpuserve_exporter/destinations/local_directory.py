"""Publishes versions in a directory. Each appears whole or not at all, and never replaces another version.

The exporter writes a version under a hidden name in the same directory (servers read only numbers) and renames it. A
rename onto a non-empty directory fails, so only one of two exporters gets a number, and the other notices.
"""

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tpuserve_exporter.destinations.staging import choose_number, staging_directory
from tpuserve_exporter.errors import PublishFailed
from tpuserve_exporter.options.export_options import VersionChoice
from tpuserve_exporter.version.manifest import PublishedVersion
from tpuserve_formats.manifest import MANIFEST_FILE, SIGNATURE_FILE

_TAKEN = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR})


class LocalDirectory:
    """A Destination on a local disk or a mounted file system."""

    def __init__(self, base: Path) -> None:
        self._base = base

    @property
    def model_name(self) -> str:
        return self._base.resolve().name

    def check(self, choice: VersionChoice) -> None:
        """Refuse a taken version number."""
        if isinstance(choice, int) and os.path.lexists(self._base / str(choice)):
            raise PublishFailed(
                f"version {choice} of {self._base.name} already exists, and published versions never change. Use "
                "another --version"
            )

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """Yield a path in the base directory.

        Create the base directory and its parents if necessary, and remove new ones that stay empty.
        """
        with self._made(), staging_directory(self._base) as staged:
            yield staged

    def newest(self) -> PublishedVersion | None:
        """Return the version of the highest number, or None."""
        number = max((number for number in self._numbers() if (self._base / str(number)).is_dir()), default=None)
        if number is None:
            return None
        version = self._base / str(number)
        try:
            manifest = (version / MANIFEST_FILE).read_bytes()
            signed = (version / SIGNATURE_FILE).is_file()
            signatures = (version / SIGNATURE_FILE).read_bytes() if signed else None
            files = [path for path in version.rglob("*") if path.is_file()]
            sizes = {path.relative_to(version).as_posix(): path.stat().st_size for path in files}
        except OSError:  # no manifest, or no permission to read it
            return PublishedVersion(number, None, {})
        return PublishedVersion(number, manifest, sizes, signatures)

    def publish(self, staged: Path, choice: VersionChoice, seal: Callable[[int], None] = lambda _: None) -> int:
        """Flush `staged` to disk, rename it to its number, and return the number."""
        while True:
            number = choose_number(choice, self._numbers(), time.time())
            seal(number)
            _settle(staged)
            if _rename(staged, self._base / str(number)):
                _sync(self._base)
                return number
            self.check(choice)  # another exporter was first: take the next number

    def locate(self, version: int) -> Path:
        return self._base / str(version)

    def _numbers(self) -> list[int]:
        """Return every number in the directory, of versions and of other files."""
        if not self._base.is_dir():
            return []
        return [int(path.name) for path in self._base.iterdir() if path.name.isdecimal()]

    @contextlib.contextmanager
    def _made(self) -> Iterator[None]:
        base = self._base
        absent = [path for path in (base, *base.parents) if not os.path.lexists(path)]
        try:
            try:
                base.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise PublishFailed(f"cannot write to {base}: {error.strerror}") from error
            yield
        finally:
            for path in absent:
                with contextlib.suppress(OSError):  # missing, or not empty because it has a version
                    path.rmdir()


def _rename(staged: Path, target: Path) -> bool:
    """Rename `staged`, or return False if the target exists. A rename would replace an empty directory."""
    if os.path.lexists(target):
        return False
    try:
        os.rename(staged, target)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise PublishFailed(f"cannot publish {target}: {error.strerror}") from error
    return True


def _settle(staged: Path) -> None:
    """Make all files readable for a server of another user, and flush them before the rename reaches the disk."""
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
