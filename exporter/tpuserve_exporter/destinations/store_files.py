"""StoreFiles: what is needed of an object store, over fsspec. Each store's errors become PublishFailed here alone."""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tpuserve_exporter.errors import MissingExtra, PublishFailed
from tpuserve_exporter.options.store_uri import EXTRAS, StoreUri

# What clouds' libraries raise where they find no credentials, and where those they found let nobody in.
_NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError", "RefreshError"}
_AWAY = {"EndpointConnectionError", "ConnectTimeoutError", "ClientConnectorError", "ConnectionError", "TimeoutError"}
_HOW_TO_LOG_IN = {
    "gcs": "gcloud auth application-default login, or GOOGLE_APPLICATION_CREDENTIALS",
    "s3": "aws configure, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
}


class StoreFiles:
    """Objects by their URIs. Credentials and endpoints come from where the store's own tools look for them."""

    def __init__(self, scheme: str) -> None:
        """Nothing is connected yet. Raises MissingExtra."""
        self._extra = EXTRAS[scheme]
        self._files = _file_system(scheme, self._extra)

    def folders(self, base: StoreUri) -> list[str]:
        """Names of what lies directly below `base`; none where there is nothing. Raises PublishFailed."""
        with self._errors(base):
            try:
                return [str(key).rstrip("/").rpartition("/")[2] for key in self._files.ls(base.key, detail=False)]
            except FileNotFoundError:
                # Nothing below the path, or no such bucket: that is worth knowing before anything is written.
                self._files.ls(base.bucket, detail=False)
                return []

    def sizes(self, folder: StoreUri) -> dict[str, int]:
        """Every object below `folder` by its name relative to it, with its size in bytes. Raises PublishFailed."""
        return {name: int(info["size"] or 0) for name, info in self._find(folder).items()}

    def times(self, folder: StoreUri) -> dict[str, float]:
        """As `sizes`, with the time that each was written, in seconds since the epoch. Raises PublishFailed."""
        return {
            name: (info.get("LastModified") or info["mtime"]).timestamp() for name, info in self._find(folder).items()
        }

    def _find(self, folder: StoreUri) -> dict[str, dict[str, Any]]:
        with self._errors(folder):
            found: dict[str, dict[str, Any]] = self._files.find(folder.key, detail=True)
        prefix = f"{folder.key}/"
        return {key.removeprefix(prefix): info for key, info in found.items() if key != prefix}

    def create(self, uri: StoreUri, content: bytes) -> bool:
        """Write an object that is not there yet; False if it is. Raises PublishFailed.

        Stores that cannot tell let the last writer win: who writes something of his own reads it back.
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
        """Copy a file; in parts, where it is large. Raises PublishFailed."""
        with self._errors(uri):
            self._files.put_file(str(path), uri.key)

    def read(self, uri: StoreUri) -> bytes | None:
        """An object's content; None if there is none. Raises PublishFailed."""
        with self._errors(uri):
            try:
                content: bytes = self._files.cat_file(uri.key)
            except FileNotFoundError:
                return None
        return content

    def delete(self, uri: StoreUri) -> None:
        """Raises PublishFailed."""
        with self._errors(uri):
            self._files.rm_file(uri.key)

    @contextlib.contextmanager
    def _errors(self, uri: StoreUri) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each store's library has errors of its own, and its network's
            raise PublishFailed(f"cannot publish to {uri}: {self._explain(uri, error)}") from error

    def _explain(self, uri: StoreUri, error: Exception) -> str:
        kind, status = type(error).__name__, _status(error)
        kinds = {one.__name__ for one in type(error).__mro__}
        if isinstance(error, FileNotFoundError) or status == 404:
            return f"there is no bucket {uri.bucket}, or it is not for these credentials to see"
        if kinds & _NO_CREDENTIALS:
            return f"no credentials were found: {_HOW_TO_LOG_IN[self._extra]}"
        if isinstance(error, PermissionError) or status in (401, 403):
            said = str(error).partition("\n")[0]
            return f"the credentials do not allow it ({said or status}); {_HOW_TO_LOG_IN[self._extra]}"
        if kinds & _AWAY:
            return f"the store cannot be reached ({kind})"
        return f"{kind}: {str(error).partition(chr(10))[0]}"


def _status(error: Exception) -> int | None:
    """The HTTP status, which gcsfs calls `code`, and s3fs leaves in the error of botocore that it translated."""
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
        # Each error comes to us, and is said once; gcsfs would log it with a traceback, too.
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL + 1)
        # The plain one: what fsspec would take asks a second API for the kind of each bucket before the first byte.
        from gcsfs.core import GCSFileSystem
    except ImportError as error:
        raise MissingExtra(f"publishing to {scheme}:// needs: pip install 'tpuserve-exporter[{extra}]'") from error
    if os.environ.get("STORAGE_EMULATOR_HOST"):
        # An emulator has no use for credentials, and gcsfs would look for some far and wide.
        options["token"] = "anon"
    return GCSFileSystem(**options)
