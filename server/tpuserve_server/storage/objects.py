"""StoredObject: an object in a listing, with the metadata that its store reports."""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

# Fields that change when an object is overwritten, the most reliable first: S3, GCS, Azure, plain file systems.
_TAGS = ("ETag", "etag", "generation", "content_md5", "LastModified", "updated", "last_modified", "mtime", "created")
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')


@dataclass(frozen=True, slots=True)
class StoredObject:
    """Object in a listing. `name` is relative to the listed URI; `key` is the store's, including the bucket.

    `tag` changes when the object is overwritten. `md5` and `crc32c` are hashes of its contents, or None if the store
    reports none.
    """

    name: str
    key: str
    size_bytes: int
    tag: str
    md5: bytes | None = None
    crc32c: bytes | None = None

    @classmethod
    def from_listing(cls, name: str, info: Mapping[str, Any]) -> Self:
        """Create an object from an entry of an fsspec listing with details."""
        tag = next((str(info[field]) for field in _TAGS if info.get(field) is not None), "")
        return cls(name, str(info["name"]), int(info["size"] or 0), tag, _md5(info), _base64(info.get("crc32c")))


def _md5(info: Mapping[str, Any]) -> bytes | None:
    """Return the MD5, or None if unknown. S3's ETag is the MD5, except after multipart uploads or KMS encryption."""
    if "ETag" in info:
        match = _MD5.fullmatch(str(info["ETag"]))
        return bytes.fromhex(match[1]) if match else None
    return _base64(info.get("md5Hash"))


def _base64(value: object) -> bytes | None:
    if not isinstance(value, str):
        return None
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error:
        return None
