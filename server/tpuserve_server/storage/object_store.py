"""ObjectStore: what is needed of a store, over fsspec. Which file system serves which scheme is known here alone."""

import os
from typing import Any

from tpuserve_server.core.errors import FailedPrecondition, InvalidArgument
from tpuserve_server.storage.objects import StoredObject

# The extra of the server's distribution that a scheme needs.
_EXTRAS = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3"}


class StoreError(OSError):
    """A store failed. For the log: it may name buckets, addresses and keys. `kind` may be shown to anyone."""

    def __init__(self, error: Exception) -> None:
        # One line and no errno: what is said once must be the same text at the next poll.
        self.kind = type(error).__name__
        super().__init__(f"{self.kind}: {str(error).split(chr(10), 1)[0]}")


class ObjectStore:
    """One scheme's file system. Safe to use from several threads."""

    def __init__(self, scheme: str) -> None:
        """Credentials and endpoints come from where the store's own tools look for them; no connection is made yet.

        Raises:
            FailedPrecondition: an extra is not installed.
            InvalidArgument: there is no such scheme.
        """
        self._files = _file_system(scheme)
        self._is_s3 = _EXTRAS.get(scheme) == "s3"

    def list(self, uri: str) -> list[StoredObject] | None:
        """Every object below `uri`, by name; one call a thousand objects. None if there is nothing there.

        Raises:
            StoreError: the store is away, or does not let us in.
        """
        try:
            found: dict[str, dict[str, Any]] = self._files.find(uri, detail=True)
        except FileNotFoundError:
            return None
        except Exception as error:
            # Each store's library has errors of its own, and its network's.
            raise StoreError(error) from error
        prefix = f"{self._files._strip_protocol(uri).rstrip('/')}/"
        objects = [
            StoredObject.from_listing(key.removeprefix(prefix), info)
            for key, info in sorted(found.items())
            if key.startswith(prefix) and info["type"] == "file" and not key.endswith("/")
        ]
        return objects or None

    def read(self, stored: StoredObject, start: int, end: int) -> bytes:
        """Bytes from `start` up to `end`, fewer if the object has become shorter.

        Raises:
            StoreError: the object is gone, or as `list`.
        """
        try:
            content: bytes = self._files.cat_file(stored.key, start=start, end=end)
        except Exception as error:
            # As in list.
            raise StoreError(error) from error
        return content

    def says_md5(self, stored: StoredObject) -> bool:
        """Whether `stored.md5` is an MD5 for sure: S3's ETag of an object encrypted by KMS only looks like one."""
        if not self._is_s3:
            return True
        bucket, _, key = stored.key.partition("/")
        try:
            head = self._files.call_s3("head_object", Bucket=bucket, Key=key)
        except Exception as error:
            # As in list.
            raise StoreError(error) from error
        return not (str(head.get("ServerSideEncryption", "")).startswith("aws:kms") or "SSECustomerAlgorithm" in head)


def _file_system(scheme: str) -> Any:  # noqa: ANN401 - fsspec has no types
    extra = _EXTRAS.get(scheme)
    needs = f"Base paths of {scheme}:// need an extra: pip install 'tpuserve-server[{extra or 's3'}]'"
    try:
        import fsspec
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
                return fsspec.filesystem(scheme, **options)
    except ImportError as error:
        raise FailedPrecondition(needs if extra else f"Base paths of {scheme}:// need: {error}") from error
    except ValueError as error:
        raise InvalidArgument(f"There is no storage for base paths of {scheme}://") from error


def _gcs(options: dict[str, Any]) -> Any:  # noqa: ANN401 - as above
    # The plain one. What fsspec would take asks a second API, over gRPC, for the kind of each bucket before the first
    # byte: credentials that read objects need not allow that, and emulators do not have it.
    from gcsfs.core import GCSFileSystem

    if os.environ.get("STORAGE_EMULATOR_HOST"):
        # An emulator has no use for credentials, and gcsfs would look for some far and wide.
        options["token"] = "anon"
    return GCSFileSystem(**options)
