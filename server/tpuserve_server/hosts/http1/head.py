"""The first lines of HTTP/1.1 messages: what a request's target says, and a response's head. The same ones come again.

No module of ours makes header values of what a client sent, so that what is kept here is kept for a reason.
"""

import re
import urllib.parse
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]

# Longer ones are parsed each time, so that strange clients cannot fill memory.
_MAX_KEPT_BYTES = 512
# RFC 9110, 5.6.2 and 5.5; a line break in either would begin a response of somebody else's making.
_NO_NAME = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9A-Za-z]")
_NO_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
# RFC 9110, 15.3.5 and 15.4.5
_BODILESS: Final = (204, 304)


class Target(NamedTuple):
    """Of a request, as ASGI has it."""

    path: str
    raw_path: bytes
    query: bytes


def parse_target(url: bytes) -> Target:
    """Raises what httptools raises, or UnicodeDecodeError or AttributeError, for what has no path in ASCII."""
    return _parse_target(url) if len(url) > _MAX_KEPT_BYTES else _parse_known_target(url)


def _parse_target(url: bytes) -> Target:
    parsed = httptools.parse_url(url)
    path = parsed.path.decode("ascii")
    return Target(urllib.parse.unquote(path) if "%" in path else path, parsed.path, parsed.query or b"")


_parse_known_target = lru_cache(maxsize=256)(_parse_target)


class Head(NamedTuple):
    """Of a response: `lines` are all but those that every response has, without the empty one at the end."""

    lines: bytes
    # Of the body as it is sent; None for one in chunks.
    length: int | None
    # Whether it says that the connection is closed after it.
    closes: bool


@lru_cache(maxsize=1024)
def head_of(status: int, headers: Headers, *, has_body: bool) -> Head:
    """The head of a response to a request that may have a body for its answer, as all but HEAD may.

    Raises RuntimeError for what is no header.
    """
    lines = [STATUS_LINE[status], header_lines(headers)]
    values = {name.lower(): value.lower() for name, value in headers}
    length = int(values[b"content-length"]) if b"content-length" in values else None
    if not has_body or status in _BODILESS:
        length = 0
    elif b"transfer-encoding" in values:
        length = None
    elif length is None:
        lines.append(b"transfer-encoding: chunked\r\n")
    closes = b"close" in [token.strip() for token in values.get(b"connection", b"").split(b",")]
    return Head(b"".join(lines), length, closes)


@lru_cache(maxsize=16)
def header_lines(headers: Headers) -> bytes:
    """Headers as they are sent. Raises RuntimeError for what is none."""
    for name, value in headers:
        if not name or _NO_NAME.search(name) or _NO_VALUE.search(value):
            raise RuntimeError(f"Not a header: {name!r}: {value!r}")
    return b"".join(b"%b: %b\r\n" % header for header in headers)
