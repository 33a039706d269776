"""ObjectStore: access to a store through fsspec. Only this module maps schemes to file systems."""

import inspect
import os
from collections.abc import Mapping
from typing import Any

from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument
from tpuserve_server.storage.objects import StoredObject

# Extra of the server's distribution that a scheme needs.
_EXTRAS = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3"}


class StoreError(OSError):
    """Error of a store, for the log only: it may name buckets, addresses and keys. Clients may see `kind`."""

    def __init__(self, error: Exception) -> None:
        # One line and no errno, because a repeated reason must have the same text at the next poll.
        self.kind = type(error).__name__
        super().__init__(f"{self.kind}: {str(error).split(chr(10), 1)[0]}")


class ObjectStore:
    """File system of one scheme. Thread-safe."""

    def __init__(self, scheme: str) -> None:
        """Create the file system without connecting. Credentials and endpoints are those of the store's own tools.

        Raises:
            FailedPrecondition: an extra is not installed.
            InvalidArgument: the scheme is unknown.
        """
        self._files = _file_system(scheme)
        self._is_s3 = _EXTRAS.get(scheme) == "s3"

    def list(self, uri: str) -> list[StoredObject] | None:
        """Return every object below `uri` by name, or None if there are none. Makes one call per thousand objects.

        Raises:
            StoreError: the store is unavailable, or denies access.
        """
        try:
            found: dict[str, dict[str, Any]] = self._files.find(uri, detail=True)
        except FileNotFoundError:
            return None
        except Exception as error:
            # Each store's library raises its own errors, and those of its network library.
            raise StoreError(error) from error
        prefix = f"{self._files._strip_protocol(uri).rstrip('/')}/"
        objects = [
            StoredObject.from_listing(key.removeprefix(prefix), info)
            for key, info in sorted(found.items())
            if key.startswith(prefix) and info["type"] == "file" and not key.endswith("/")
        ]
        return objects or None

    def read(self, stored: StoredObject, start: int, end: int) -> bytes:
        """Return the bytes from `start` up to `end`: fewer if the object has become shorter.

        Raises:
            StoreError: the object is gone, or the store fails as in `list`.
        """
        try:
            content: bytes = self._files.cat_file(stored.key, start=start, end=end)
        except Exception as error:
            # Any error, as in `list`.
            raise StoreError(error) from error
        return content

    def has_md5(self, stored: StoredObject) -> bool:
        """Return whether `stored.md5` is certainly an MD5. S3's ETag only looks like one after encryption by KMS."""
        if not self._is_s3:
            return True
        bucket, _, key = stored.key.partition("/")
        try:
            head = self._files.call_s3("head_object", Bucket=bucket, Key=key)
        except Exception as error:
            # Any error, as in `list`.
            raise StoreError(error) from error
        return not (str(head.get("ServerSideEncryption", "")).startswith("aws:kms") or "SSECustomerAlgorithm" in head)


def _file_system(scheme: str) -> Any:  # noqa: ANN401 - fsspec has no types
    extra = _EXTRAS.get(scheme)
    needs = f"Base paths of {scheme}:// need an extra: pip install 'tpuserve-server[{extra or 's3'}]'"
    try:
        import fsspec  # noqa: F401 - all file systems need it
    except ImportError as error:
        raise FailedPrecondition(needs) from error
    options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
    try:
        match extra:
            case "gcs":
                return _gcs(options)
            case "s3":
                from s3fs import S3FileSystem

                return S3FileSystem(**options)
            case _:
                return _other(scheme, options)
    except ImportError as error:
        raise FailedPrecondition(needs if extra else f"Base paths of {scheme}:// need: {error}") from error


def _other(scheme: str, options: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as above
    import fsspec

    try:
        files = fsspec.get_filesystem_class(scheme)
        # Before the construction: some file systems leave a half-made object, whose end fails.
        inspect.signature(files.__init__).bind(None, **options)
        return files(**options)
    except ImportError:
        raise
    except Exception as error:
        # An unknown scheme, or a file system that needs more than a URI. Each raises its own errors.
        raise InvalidArgument(f"The server does not support base paths of {scheme}://") from error


def _gcs(options: dict[str, Any]) -> Any:  # noqa: ANN401 - as above
    # The plain file system. fsspec's default first queries a second API, over gRPC, for the type of each bucket.
    # Credentials that can read objects may not allow that, and emulators do not implement it.
    from gcsfs.core import GCSFileSystem

    if os.environ.get("STORAGE_EMULATOR_HOST"):
        # An emulator needs no credentials, and gcsfs would search for them in many places.
        options["token"] = "anon"
    return GCSFileSystem(**options)
