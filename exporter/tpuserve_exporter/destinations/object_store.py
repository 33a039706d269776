"""Publishes versions in an object store, which cannot rename a folder. The manifest comes last and completes a version.

The exporter first creates a claim in the manifest's folder, so only one of two exporters gets a number. Servers ignore
a version that has a claim and no manifest.
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
from tpuserve_formats.manifest import MANIFEST_FILE, SIGNATURE_FILE

CLAIM_FILE = MANIFEST_FILE.with_name("claim")
# Longer than any upload of a file. Until then, the exporter may be running.
_ABANDONED_AFTER_S = 24 * 60 * 60
# These files come after all others, in this order.
_LAST = ("saved_model.pb", MANIFEST_FILE.as_posix())


class ObjectStore:
    """A Destination in a bucket."""

    def __init__(self, base: StoreUri, clock: Callable[[], float] = time.time) -> None:
        """Create the destination without connecting. `clock` returns seconds since the epoch. Raises MissingExtra."""
        self._base = base
        self._clock = clock
        self._files = StoreFiles(base.scheme)

    @property
    def model_name(self) -> str:
        return self._base.name

    def check(self, choice: VersionChoice) -> None:
        """Refuse a taken version number. Raises PublishFailed also if the bucket is missing or cannot be listed."""
        if choice in self._numbers():
            raise PublishFailed(
                f"version {choice} of {self._base} already exists, and published versions never change. Use another "
                "--version"
            )

    def staging(self) -> contextlib.AbstractContextManager[Path]:
        """Return a path in the temporary directory. Delete the remains of killed exporters in the store."""
        with contextlib.suppress(PublishFailed):  # no permission, or another exporter deletes them
            self._remove_abandoned()
        return staging_directory(Path(tempfile.gettempdir()))

    def newest(self) -> PublishedVersion | None:
        """Return the version of the highest number, or None."""
        number = max(self._numbers(), default=None)
        if number is None:
            return None
        location = self.locate(number)
        manifest = self._files.read(location / MANIFEST_FILE.as_posix())
        signatures = self._files.read(location / SIGNATURE_FILE.as_posix())
        return PublishedVersion(number, manifest, self._files.sizes(location), signatures)

    def publish(self, staged: Path, choice: VersionChoice, seal: Callable[[int], None] = lambda _: None) -> int:
        """Upload `staged` under its number and return the number. Delete the copied objects if the upload fails."""
        while True:
            number = choose_number(choice, self._numbers(), self._clock())
            if self._claim(number):
                break
            self.check(choice)  # another exporter was first: take the next number
        try:
            seal(number)
            self._upload(staged, self.locate(number))
        except BaseException:
            with contextlib.suppress(PublishFailed):  # unreachable store: the version stays without a manifest
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
        # Hexadecimal text, because a GCS emulator drops a carriage return at the end of raw bytes.
        return self._files.create(self.locate(number) / CLAIM_FILE.as_posix(), uuid.uuid4().hex.encode())

    def _remove_abandoned(self) -> None:
        """Delete versions that have a claim and no manifest, and did not change for a day."""
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
        """Compare the sizes of all uploaded files, before the manifest marks the version as complete."""
        there = self._files.sizes(version)
        for name, path in files.items():
            arrived, sent = there.get(name, 0), path.stat().st_size
            if name != MANIFEST_FILE.as_posix() and arrived != sent:
                raise PublishFailed(f"cannot publish to {version}: {arrived} of {sent} bytes of {name} arrived")

    def _remove(self, version: StoreUri) -> None:
        """Delete the claim last, so that no other exporter takes the number before."""
        claim = CLAIM_FILE.as_posix()
        for name in sorted(self._files.sizes(version), key=lambda name: (name == claim, _order(name))):
            self._files.delete(version / name)


def _order(name: str) -> tuple[int, str]:
    return _LAST.index(name) + 1 if name in _LAST else 0, name
