"""The header `Inference-Header-Content-Length`: the length of the JSON before the binary data of a body.

Source: Triton's binary tensor data extension and http_server.cc, GetInferenceHeaderLength.
"""

import re
from typing import TYPE_CHECKING, Final

from tpuserve_server.core.errors import InvalidArgument

if TYPE_CHECKING:
    from starlette.types import Scope

_NAME: Final = "Inference-Header-Content-Length"
JSON_LENGTH_HEADER: Final = _NAME.lower().encode()

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
    return None if value is None else _read(value.strip(), body_bytes)


def _read(value: bytes, body_bytes: int) -> int:
    shown = value[:_MOST_SHOWN].decode("latin-1")
    if not _INTEGER.fullmatch(value):
        raise InvalidArgument(f"Unable to parse {_NAME}, got: {shown}")
    if len(value) > _MOST_DIGITS or not _MIN_INT32 <= int(value) <= _MAX_INT32:
        raise InvalidArgument(
            f"Unable to parse {_NAME}, value is out of range [ {_MIN_INT32}, {_MAX_INT32} ], got: {shown}"
        )
    length = int(value)
    if not 0 <= length <= body_bytes:
        raise InvalidArgument(f"inference header size should be in range (0, {body_bytes}), got: {length}")
    return length
