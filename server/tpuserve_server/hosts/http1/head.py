"""Heads of HTTP/1.1: rules for requests that httptools omits, targets, responses. Results that repeat are cached.

No tpuserve module copies client data into response headers, so clients cannot fill the cache of heads.
"""

import re
import urllib.parse
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]

# Longer targets are not cached, so that clients cannot fill memory with them.
_MAX_KEPT_BYTES = 512
# Characters not allowed in names and values (RFC 9110, 5.6.2 and 5.5). A line break would allow response splitting.
_NO_NAME = re.compile(rb"[^!#$%&'*+\-.^_`|~0-9A-Za-z]")
_NO_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
# A name, an address of IPv4 or one of IPv6 in brackets, then the port (RFC 9110, 7.2). Empty if the target has no host.
# Without the comma, which RFC 3986 allows: a proxy may have joined two headers.
_HOST = re.compile(rb"(?:\[[0-9A-Za-z:.%_~-]+\]|[0-9A-Za-z._~!$&'()*+;=%-]*)(?::[0-9]*)?")
# RFC 9110, 15.3.5 and 15.4.5
_BODILESS: Final = (204, 304)


class MalformedHead(Exception):
    """The head of a request breaks a rule of RFC 9112, and the message names it."""


def check_head(version: str, url: bytes, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raise MalformedHead for a head that httptools accepts, but that another server may read differently.

    The names of `headers` are in lower case.
    """
    if version not in ("1.1", "1.0"):
        raise MalformedHead(f"HTTP/{version} is not supported")
    if b"#" in url:
        raise MalformedHead("A request target has no fragment")
    hosts = 0
    for name, value in headers:
        if name == b"host":
            hosts += 1
            if not _HOST.fullmatch(value.strip(b" \t")):
                raise MalformedHead("The Host header is no host")
        elif name == b"transfer-encoding" and (version == "1.0" or value.strip(b" \t").lower() != b"chunked"):
            raise MalformedHead("The transfer encoding must be chunked, over HTTP/1.1")
    # Health checks over HTTP/1.0 may omit it (RFC 9112, 3.2).
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        raise MalformedHead(f"A request must have one Host header, not {hosts}")


class Target(NamedTuple):
    """The target of a request, in ASGI's form."""

    path: str
    raw_path: bytes
    query: bytes


def parse_target(url: bytes) -> Target:
    """Parse a request target.

    Raises httptools' errors, UnicodeDecodeError or AttributeError for a target without a path in ASCII.
    """
    return _parse_target(url) if len(url) > _MAX_KEPT_BYTES else _parse_known_target(url)


def _parse_target(url: bytes) -> Target:
    parsed = httptools.parse_url(url)
    path = parsed.path.decode("ascii")
    return Target(urllib.parse.unquote(path) if "%" in path else path, parsed.path, parsed.query or b"")


_parse_known_target = lru_cache(maxsize=256)(_parse_target)


class Head(NamedTuple):
    """The head of a response. `lines` omits the default headers of every response and the final empty line."""

    lines: bytes
    # Length of the body on the wire. None for a chunked body.
    length: int | None
    # Whether a header closes the connection after the response.
    closes: bool


@lru_cache(maxsize=1024)
def head_of(status: int, headers: Headers, *, has_body: bool) -> Head:
    """Return the head of a response. `has_body` is False for a response to HEAD.

    Raises RuntimeError for an invalid header.
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
    """Return headers in wire format. Raises RuntimeError for an invalid header."""
    for name, value in headers:
        if not name or _NO_NAME.search(name) or _NO_VALUE.search(value):
            raise RuntimeError(f"Not a header: {name!r}: {value!r}")
    return b"".join(b"%b: %b\r\n" % header for header in headers)
