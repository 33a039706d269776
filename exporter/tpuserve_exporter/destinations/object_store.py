"""Publishes versions in an object store, which cannot rename a folder. The manifest comes last and completes a version.

The exporter first creates a claim in the manifest's folder, so only one of two exporters gets a number. Servers ignore
a version that has a claim and no manifest.
"""

import contextlib
import logging
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tpuserve_exporter.destinations.staging import choose_number, staging_directory
from tpuserve_exporter.errors import MissingExtra, PublishFailed
from tpuserve_exporter.options.export_options import VersionChoice
from tpuserve_exporter.options.store_uri import EXTRAS, StoreUri
from tpuserve_exporter.version.manifest import PublishedVersion
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


# Errors of cloud libraries for missing or rejected credentials, by class name.
_NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError", "RefreshError"}
_AWAY = {"EndpointConnectionError", "ConnectTimeoutError", "ClientConnectorError", "ConnectionError", "TimeoutError"}
_HOW_TO_LOG_IN = {
    "gcs": "gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS",
    "s3": "aws configure, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
}


class StoreFiles:
    """Objects by URI. Credentials and endpoints come from the sources that the store's own tools use."""

    def __init__(self, scheme: str) -> None:
        """Create the file system without connecting. Raises MissingExtra."""
        self._extra = EXTRAS[scheme]
        self._files = _file_system(scheme, self._extra)

    def folders(self, base: StoreUri) -> list[str]:
        """Return the names directly below `base`, possibly none. Raises PublishFailed."""
        with self._errors(base):
            try:
                return [str(key).rstrip("/").rpartition("/")[2] for key in self._files.ls(base.key, detail=False)]
            except FileNotFoundError:
                # The path is empty, or the bucket is missing, which the exporter must find before it writes.
                self._files.ls(base.bucket, detail=False)
                return []

    def sizes(self, folder: StoreUri) -> dict[str, int]:
        """Return the size in bytes of every object below `folder`, by relative name. Raises PublishFailed."""
        return {name: int(info["size"] or 0) for name, info in self._find(folder).items()}

    def times(self, folder: StoreUri) -> dict[str, float]:
        """Return the write time of every object below `folder`, in seconds since the epoch. Raises PublishFailed."""
        return {
            name: (info.get("LastModified") or info["mtime"]).timestamp() for name, info in self._find(folder).items()
        }

    def _find(self, folder: StoreUri) -> dict[str, dict[str, Any]]:
        with self._errors(folder):
            found: dict[str, dict[str, Any]] = self._files.find(folder.key, detail=True)
        prefix = f"{folder.key}/"
        return {key.removeprefix(prefix): info for key, info in found.items() if key != prefix}

    def create(self, uri: StoreUri, content: bytes) -> bool:
        """Write an object unless it exists. Return whether this call wrote it. Raises PublishFailed.

        In a store without conditional writes, the last writer wins, so the method reads the object back and compares.
        """
        with self._errors(uri):
            try:
                self._files.pipe_file(uri.key, content, mode="create")
            except FileExistsError:
                return False
            except Exception as error:
                if _status(error) in (409, 412):  # Conflict, Precondition Failed: another was first
                    return False
                raise
            return bool(self._files.cat_file(uri.key) == content)

    def upload(self, path: Path, uri: StoreUri) -> None:
        """Copy a file, in several parts if it is large. Raises PublishFailed."""
        with self._errors(uri):
            self._files.put_file(str(path), uri.key)

    def read(self, uri: StoreUri) -> bytes | None:
        """Return an object's content, or None if there is no object. Raises PublishFailed."""
        with self._errors(uri):
            try:
                content: bytes = self._files.cat_file(uri.key)
            except FileNotFoundError:
                return None
        return content

    def delete(self, uri: StoreUri) -> None:
        """Delete an object. Raises PublishFailed."""
        with self._errors(uri):
            self._files.rm_file(uri.key)

    @contextlib.contextmanager
    def _errors(self, uri: StoreUri) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each store's library and its network raise other types
            raise PublishFailed(f"cannot publish to {uri}: {self._explain(uri, error)}") from error

    def _explain(self, uri: StoreUri, error: Exception) -> str:
        kind, status = type(error).__name__, _status(error)
        kinds = {one.__name__ for one in type(error).__mro__}
        if isinstance(error, FileNotFoundError) or status == 404:
            return f"there is no bucket {uri.bucket}, or the credentials cannot see it"
        if kinds & _NO_CREDENTIALS:
            return f"no credentials were found. Run {_HOW_TO_LOG_IN[self._extra]}"
        if isinstance(error, PermissionError) or status in (401, 403):
            reason = str(error).partition("\n")[0]
            return f"the credentials do not allow it ({reason or status}). Run {_HOW_TO_LOG_IN[self._extra]}"
        if kinds & _AWAY:
            return f"cannot reach the store ({kind})"
        return f"{kind}: {str(error).partition(chr(10))[0]}"


def _status(error: Exception) -> int | None:
    """Return the HTTP status, or None. gcsfs has it in `code`, s3fs in the botocore error that is the cause."""
    for one in (error, error.__cause__):
        response = getattr(one, "response", None)
        if isinstance(response, dict):
            return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) or None
        code = getattr(one, "code", None)
        if isinstance(code, int | str) and str(code).isdecimal():
            return int(code)
    return None


def _file_system(scheme: str, extra: str) -> Any:  # noqa: ANN401 - fsspec has no types
    options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
    try:
        if extra == "s3":
            from s3fs import S3FileSystem

            return S3FileSystem(**options)
        # The caller reports each error once. gcsfs would also log it with a traceback.
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL + 1)
        # The basic file system: fsspec's default asks a second API for the kind of each bucket first.
        from gcsfs.core import GCSFileSystem
    except ImportError as error:
        raise MissingExtra(
            f"publishing to {scheme}:// needs a package. Run pip install 'tpuserve-exporter[{extra}]'"
        ) from error
    if os.environ.get("STORAGE_EMULATOR_HOST"):
        # An emulator needs no credentials, and gcsfs would search several places for them.
        options["token"] = "anon"
    return GCSFileSystem(**options)
