"""What a REST request's headers ask for, read in one go: its body's length and encoding, a timeout, a priority."""

import math
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from tpuserve_server.core.errors import InvalidArgument
from tpuserve_server.core.priority import Priority
from tpuserve_server.frontends.http.errors import BodyTooLarge
from tpuserve_server.frontends.http.gzip import is_gzip
from tpuserve_server.frontends.priority import PRIORITY_HEADER, parse_priority

if TYPE_CHECKING:
    from starlette.types import Scope

TIMEOUT_HEADER: Final = "x-tpuserve-timeout-ms"

_TIMEOUT: Final = TIMEOUT_HEADER.encode()
_PRIORITY: Final = PRIORITY_HEADER.encode()
_KNOWN: Final = frozenset({b"content-length", b"content-encoding", _TIMEOUT, _PRIORITY})
_MILLISECONDS = re.compile(rb"[0-9]{1,20}(\.[0-9]{1,9})?")
# Clients that mean "for ever" send the largest integer they have. Timers take three hundred years.
_MOST_MILLISECONDS = 1e13
_MOST_SHOWN = 32


class RequestHeaders(NamedTuple):
    """`timeout_s` counts from the request's arrival; inf where the client did not say."""

    is_compressed: bool = False
    timeout_s: float = math.inf
    priority: Priority = Priority.HIGH


_PLAIN: Final = RequestHeaders()


def read_headers(scope: "Scope", limit_bytes: int) -> RequestHeaders:
    """What they say.

    Raises:
        BodyTooLarge: the body is declared to be longer than `limit_bytes`.
        UnsupportedEncoding: it is encoded otherwise than by gzip.
        InvalidArgument: a timeout or a priority that is none.
    """
    is_compressed = False
    asked: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name not in _KNOWN:
            continue
        if name == b"content-length":
            if _declared(value) > limit_bytes:
                raise BodyTooLarge(limit_bytes)
        elif name == b"content-encoding":
            # Two headers are one list (RFC 9110, 5.3), and no list is spoken here.
            is_compressed = is_gzip(b"gzip, " + value if is_compressed else value)
        else:
            asked[name] = b", ".join((asked[name], value)) if name in asked else value
    if not (is_compressed or asked):
        return _PLAIN
    return RequestHeaders(is_compressed, _timeout_s(asked.get(_TIMEOUT)), parse_priority(asked.get(_PRIORITY)))


def _declared(content_length: bytes) -> int:
    # Servers refuse malformed lengths before we see them; the body is measured anyhow.
    return int(content_length) if content_length.isdigit() and len(content_length) < 20 else 0


def _timeout_s(value: bytes | None) -> float:
    if value is None:
        return math.inf
    text = value.strip()
    if _MILLISECONDS.fullmatch(text) and (milliseconds := float(text)) > 0:
        return min(milliseconds, _MOST_MILLISECONDS) / 1000
    shown = value[:_MOST_SHOWN].decode("latin-1")
    raise InvalidArgument(f"{TIMEOUT_HEADER} must be a positive number of milliseconds; was {shown!r}")
