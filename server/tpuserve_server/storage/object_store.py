"""ObjectStore: access to a store through fsspec. Only this module maps schemes to file systems."""

import base64
import binascii
import inspect
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, Self

from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument
from tpuserve_server.storage.variables import gcs_options, s3_options

# Fields with the time of the last write: S3, GCS and Azure, plain file systems.
_TIMES = ("LastModified", "updated", "last_modified", "mtime", "created")
# Fields that change when an object is overwritten, the most reliable first: S3, GCS, Azure, plain file systems.
_TAGS = ("ETag", "etag", "generation", "content_md5", "LastModified", "updated", "last_modified", "mtime", "created")
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')


@dataclass(frozen=True, slots=True)
class StoredObject:
    """Object in a listing. `name` is relative to the listed URI; `key` is the store's, including the bucket.

    `tag` changes when the object is overwritten. `md5` and `crc32c` are hashes of its contents, and `written_unix_s` is
    the time of its last write, or None if the store reports none.
    """

    name: str
    key: str
    size_bytes: int
    tag: str
    md5: bytes | None = None
    crc32c: bytes | None = None
    written_unix_s: float | None = None

    @classmethod
    def from_listing(cls, name: str, info: Mapping[str, Any]) -> Self:
        """Create an object from an entry of an fsspec listing with details."""
        tag = next((str(info[field]) for field in _TAGS if info.get(field) is not None), "")
        size_bytes, crc32c = int(info["size"] or 0), _base64(info.get("crc32c"))
        return cls(name, str(info["name"]), size_bytes, tag, _md5(info), crc32c, _written_unix_s(info))


def _md5(info: Mapping[str, Any]) -> bytes | None:
    """Return the MD5, or None if unknown. S3's ETag is the MD5, except after multipart uploads or KMS encryption."""
    if "ETag" in info:
        match = _MD5.fullmatch(str(info["ETag"]))
        return bytes.fromhex(match[1]) if match else None
    return _base64(info.get("md5Hash"))


def _written_unix_s(info: Mapping[str, Any]) -> float | None:
    value = next((info[field] for field in _TIMES if info.get(field) is not None), None)
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return None
    if isinstance(moment, datetime):
        # fsspec's file systems give UTC if they give no zone.
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return float(moment) if isinstance(moment, int | float) else None


def _base64(value: object) -> bytes | None:
    if not isinstance(value, str):
        return None
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error:
        return None


# Environment variables that change a file system.
_PREFIXES: Final = ("AWS_", "S3_", "GCS_", "GOOGLE_", "STORAGE_", "CLOUDSDK_", "FSSPEC_")
# Extra of the server's distribution that a scheme needs.
_EXTRAS = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3"}


class StoreError(OSError):
    """Error of a store, for the log only: it may name buckets, addresses and keys. Clients may see `kind`."""

    def __init__(self, error: Exception) -> None:
        # One line and no errno, because a repeated reason must have the same text at the next poll.
        self.kind = type(error).__name__
        super().__init__(f"{self.kind}: {str(error).split(chr(10), 1)[0]}")


def store_of(uri: str) -> "ObjectStore":
    """Return the store of a URI, which all its users in the process share. Raises as `ObjectStore`."""
    # Tests and notebooks may change the variables, and a forked process needs connections of its own.
    variables = frozenset(item for item in os.environ.items() if item[0].startswith(_PREFIXES))
    return _open_store(uri.partition("://")[0], os.getpid(), variables)


@lru_cache(maxsize=8)
def _open_store(scheme: str, _process: int, _variables: frozenset[tuple[str, str]]) -> "ObjectStore":
    return ObjectStore(scheme)


class ObjectStore:
    """File system of one scheme. Thread-safe."""

    def __init__(self, scheme: str) -> None:
        """Create the file system without connecting. Credentials and endpoints are those of the store's own tools.

        Raises:
            FailedPrecondition: an extra is not installed.
            InvalidArgument: the scheme is unknown.
        """
        self._files = _file_system(scheme)
        self._extra = _EXTRAS.get(scheme)

    @property
    def lists_pages(self) -> bool:
        """Whether a listing can end after a number of objects."""
        return self._extra is not None

    def list(self, uri: str, most: int | None = None) -> list[StoredObject] | None:
        """Return every object below `uri` by name, or None if there are none. Makes one call per thousand objects.

        `most`: if there are more objects, return one more than so many. Only for a store that `lists_pages`.

        Raises:
            StoreError: the store is unavailable, or denies access.
        """
        path = self._files._strip_protocol(uri).rstrip("/")
        try:
            found = self._find(uri, path, most)
        except FileNotFoundError:
            return None
        except Exception as error:
            # Each store's library raises its own errors, and those of its network library.
            raise StoreError(error) from error
        objects = [
            StoredObject.from_listing(info["name"].removeprefix(f"{path}/"), info)
            for info in sorted(found, key=lambda info: str(info["name"]))
            if info["name"].startswith(f"{path}/") and info["type"] == "file" and not info["name"].endswith("/")
        ]
        return objects or None

    def _find(self, uri: str, path: str, most: int | None) -> Collection[dict[str, Any]]:
        bucket, _, key = path.partition("/")
        limit = None if most is None else most + 1
        if self._extra == "gcs":
            # `find` lists an empty prefix twice, and has no limit.
            arguments: dict[str, Any] = {"delimiter": "", "prefix": f"{key}/" if key else "", "max_results": limit}
            from fsspec.asyn import sync

            items: Collection[dict[str, Any]]
            items, _ = sync(self._files.loop, self._files._do_list_objects, bucket, **arguments)
            return items
        if self._extra == "s3":
            # Without a prefix, an empty listing makes `find` ask twice more whether the path is an object.
            arguments = {"prefix": f"{key}/"} if key else {}
            found: dict[str, dict[str, Any]] = self._files.find(bucket, detail=True, max_items=limit, **arguments)
        else:
            found = self._files.find(uri, detail=True)
        return found.values()

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

    def read_file(self, uri: str, max_bytes: int) -> bytes | None:
        """Return the content of the object, or None if there is none. Longer objects end after `max_bytes` + 1 bytes.

        Raises:
            StoreError: the store is unavailable, or denies access.
        """
        try:
            # A range of an empty object would be an error.
            size_bytes = self._files.info(uri)["size"] or 0
            end = {"start": 0, "end": max_bytes + 1} if size_bytes > max_bytes else {}
            content: bytes = self._files.cat_file(uri, **end)
        except FileNotFoundError:
            return None
        except Exception as error:
            # Any error, as in `list`.
            raise StoreError(error) from error
        return content

    def has_md5(self, stored: StoredObject) -> bool:
        """Return whether `stored.md5` is certainly an MD5. S3's ETag only looks like one after encryption by KMS."""
        if self._extra != "s3":
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
    needs = f"Paths of {scheme}:// need an extra: pip install 'tpuserve-server[{extra or 's3'}]'"
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

                return S3FileSystem(**options, **s3_options(os.environ))
            case _:
                return _other(scheme, options)
    except ImportError as error:
        raise FailedPrecondition(needs if extra else f"Paths of {scheme}:// need: {error}") from error


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
        raise InvalidArgument(f"The server does not support paths of {scheme}://") from error


def _gcs(options: dict[str, Any]) -> Any:  # noqa: ANN401 - as above
    # The plain file system. fsspec's default first queries a second API, over gRPC, for the type of each bucket.
    # Credentials that can read objects may not allow that, and emulators do not implement it.
    from gcsfs.core import GCSFileSystem

    if os.environ.get("STORAGE_EMULATOR_HOST"):
        # An emulator needs no credentials, and gcsfs would search for them in many places.
        options["token"] = "anon"
    return GCSFileSystem(**options, **gcs_options(os.environ))
