"""StoredObject, and what its store says of its contents in a listing."""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

# What tells that an object was written anew, in the order of how surely: S3, GCS, Azure, plain file systems.
_TAGS = ("ETag", "etag", "generation", "content_md5", "LastModified", "updated", "last_modified", "mtime", "created")
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object of a listing. `name` is relative to what was listed; `key` is the store's, bucket and all.

    `tag` changes when it is written anew. `md5` and `crc32c` are of its contents, where the store gives them.
    """

    name: str
    key: str
    size_bytes: int
    tag: str
    md5: bytes | None = None
    crc32c: bytes | None = None

    @classmethod
    def from_listing(cls, name: str, info: Mapping[str, Any]) -> Self:
        """From an entry of an fsspec listing with details."""
        tag = next((str(info[field]) for field in _TAGS if info.get(field) is not None), "")
        return cls(name, str(info["name"]), int(info["size"] or 0), tag, _md5(info), _base64(info.get("crc32c")))


def _md5(info: Mapping[str, Any]) -> bytes | None:
    """GCS says it; S3's ETag is it, unless the object came in parts (or is encrypted by a key of KMS)."""
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
