"""Operations on an object store, over fsspec. This module alone turns the stores' errors into PublishFailed."""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tpuserve_exporter.errors import MissingExtra, PublishFailed
from tpuserve_exporter.options.store_uri import EXTRAS, StoreUri

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
