"""Versions in an object store, which cannot rename a folder: the manifest comes last, and makes a version whole.

First of all a claim is created, in the folder of ours that the manifest is to lie in: of two exporters that take one
number, one gets it; and a version that has the claim and no manifest is one that servers leave alone.
"""

import contextlib
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from tpuserve_exporter.destinations.staging import staging_directory
from tpuserve_exporter.destinations.store_files import StoreFiles
from tpuserve_exporter.destinations.version_number import choose_number
from tpuserve_exporter.errors import PublishFailed
from tpuserve_exporter.options.export_options import VersionChoice
from tpuserve_exporter.options.store_uri import StoreUri
from tpuserve_exporter.version.published_version import PublishedVersion
from tpuserve_formats.manifest import MANIFEST_FILE

CLAIM_FILE = MANIFEST_FILE.with_name("claim")
# Longer than the largest file takes to arrive: until then its exporter may be alive.
_ABANDONED_AFTER_S = 24 * 60 * 60
# In this order, after everything else.
_LAST = ("saved_model.pb", MANIFEST_FILE.as_posix())


class ObjectStore:
    """A Destination in a bucket."""

    def __init__(self, base: StoreUri, clock: Callable[[], float] = time.time) -> None:
        """Nothing is connected yet. `clock` gives seconds since the epoch. Raises MissingExtra."""
        self._base = base
        self._clock = clock
        self._files = StoreFiles(base.scheme)

    @property
    def model_name(self) -> str:
        return self._base.name

    def check(self, choice: VersionChoice) -> None:
        """As Destination has it; also that the bucket is there and lists what it holds."""
        if choice in self._numbers():
            raise PublishFailed(f"version {choice} of {self._base} is taken: a published version never changes")

    def staging(self) -> contextlib.AbstractContextManager[Path]:
        """As Destination has it, where temporary files go. What killed exporters left in the store is deleted."""
        with contextlib.suppress(PublishFailed):  # not for these credentials to delete, or another is at it
            self._remove_abandoned()
        return staging_directory(Path(tempfile.gettempdir()))

    def newest(self) -> PublishedVersion | None:
        """As Destination has it."""
        number = max(self._numbers(), default=None)
        if number is None:
            return None
        manifest = self._files.read(self.locate(number) / MANIFEST_FILE.as_posix())
        return PublishedVersion(number, manifest, self._files.sizes(self.locate(number)))

    def publish(self, staged: Path, choice: VersionChoice) -> int:
        """As Destination has it. What was copied is deleted again if not all of it can be."""
        while True:
            number = choose_number(choice, self._numbers(), self._clock())
            if self._claim(number):
                break
            self.check(choice)  # or else another exporter was first: take the number after its
        try:
            self._upload(staged, self.locate(number))
        except BaseException:
            with contextlib.suppress(PublishFailed):  # the store is away: it is left without a manifest
                self._remove(self.locate(number))
            raise
        return number

    def locate(self, version: int) -> StoreUri:
        return self._base / str(version)

    def _numbers(self) -> list[int]:
        return [int(name) for name in self._files.folders(self._base) if name.isdecimal()]

    def _claim(self, number: int) -> bool:
        if number in self._numbers():
            return False
        # As text: of raw bytes that end in a carriage return, an emulator of GCS gives back one less.
        return self._files.create(self.locate(number) / CLAIM_FILE.as_posix(), uuid.uuid4().hex.encode())

    def _remove_abandoned(self) -> None:
        """Versions that were claimed, have no manifest, and to which nothing was added for long."""
        versions: dict[str, dict[str, float]] = {}
        for name, written_at in self._files.times(self._base).items():
            number, _, rest = name.partition("/")
            if number.isdecimal():
                versions.setdefault(number, {})[rest] = written_at
        latest = self._clock() - _ABANDONED_AFTER_S
        for number, there in versions.items():
            unfinished = CLAIM_FILE.as_posix() in there and MANIFEST_FILE.as_posix() not in there
            if unfinished and max(there.values()) < latest:
                self._remove(self.locate(int(number)))

    def _upload(self, staged: Path, version: StoreUri) -> None:
        files = {path.relative_to(staged).as_posix(): path for path in staged.rglob("*") if path.is_file()}
        for name in sorted(files, key=_order):
            if name == MANIFEST_FILE.as_posix():
                self._compare_sizes(files, version)
            self._files.upload(files[name], version / name)

    def _compare_sizes(self, files: dict[str, Path], version: StoreUri) -> None:
        """Of everything but the manifest, before it says that all is there."""
        there = self._files.sizes(version)
        for name, path in files.items():
            arrived, sent = there.get(name, 0), path.stat().st_size
            if name != MANIFEST_FILE.as_posix() and arrived != sent:
                raise PublishFailed(f"cannot publish to {version}: of {name} {arrived} bytes of {sent} arrived")

    def _remove(self, version: StoreUri) -> None:
        """The claim at the end: until then nobody takes the number."""
        claim = CLAIM_FILE.as_posix()
        for name in sorted(self._files.sizes(version), key=lambda name: (name == claim, _order(name))):
            self._files.delete(version / name)


def _order(name: str) -> tuple[int, str]:
    return _LAST.index(name) + 1 if name in _LAST else 0, name
