"""Length of the JSON before the binary data of a body, from `Inference-Header-Content-Length` or the media type.

Source: Triton's binary tensor data extension, and GetInferenceHeaderLength of http_server.cc and vertex_ai_server.cc.
"""

import re
from typing import TYPE_CHECKING, Final

from tpuserve_server.core.terms.errors import InvalidArgument

if TYPE_CHECKING:
    from starlette.types import Scope

_NAME: Final = "Inference-Header-Content-Length"
JSON_LENGTH_HEADER: Final = _NAME.lower().encode()
# Clients of Vertex AI use it, because the platform passes the content type through.
_MEDIA_TYPE: Final = b"application/vnd.vertex-ai-triton.binary+json;json-header-size="

_INTEGER = re.compile(rb"[+-]?[0-9]+")
_MIN_INT32, _MAX_INT32 = -(1 << 31), (1 << 31) - 1
_MOST_DIGITS = 11
_MOST_SHOWN = 32


def read_json_length(scope: "Scope", body_bytes: int) -> int | None:
    """Return the length of the JSON in a body of `body_bytes`, decompressed. None means that all of it is JSON.

    Raises:
        InvalidArgument: the header is not a number from 0 to `body_bytes`.
    """
    # A loop: a dict of the few headers of a request costs more.
    value: bytes | None = None
    for name, each in scope["headers"]:
        if name == JSON_LENGTH_HEADER:
            value = each
    return None if value is None else _read(_NAME, value.strip(), body_bytes)


def read_media_type_length(scope: "Scope", body_bytes: int) -> int | None:
    """Return the length that the content type names, or None for another content type.

    Raises:
        InvalidArgument: the length is not a number from 0 to `body_bytes`.
    """
    for name, value in scope["headers"]:
        if name == b"content-type" and value.lower().startswith(_MEDIA_TYPE):
            return _read("json-header-size", value[len(_MEDIA_TYPE) :].strip(), body_bytes)
    return None


def _read(name: str, value: bytes, body_bytes: int) -> int:
    if not _INTEGER.fullmatch(value):
        raise InvalidArgument(f"Unable to parse {name}, got: {_shown(value)}")
    if len(value) > _MOST_DIGITS or not _MIN_INT32 <= int(value) <= _MAX_INT32:
        raise InvalidArgument(
            f"Unable to parse {name}, value is out of range [ {_MIN_INT32}, {_MAX_INT32} ], got: {_shown(value)}"
        )
    length = int(value)
    if not 0 <= length <= body_bytes:
        raise InvalidArgument(f"inference header size should be in range (0, {body_bytes}), got: {length}")
    return length


def _shown(value: bytes) -> str:
    return value[:_MOST_SHOWN].decode("latin-1")
