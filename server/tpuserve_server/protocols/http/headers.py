"""Headers of a REST request: length and encoding of the body, timeout, priority and trace in one pass; Accept.

Accept names the media types that a client takes, with their weights (RFC 9110, 12.5.1).
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.observe.requests.trace_context import REQUEST_ID_HEADER, TRACEPARENT, TRACESTATE, TraceHeaders
from tpuserve_server.protocols.http.content import Coding, find_coding
from tpuserve_server.protocols.priority import PRIORITY_HEADER, parse_priority
from tpuserve_server.protocols.status import BodyTooLarge
from tpuserve_server.protocols.timing import TIMING_REQUEST_HEADER, wants_timing

if TYPE_CHECKING:
    from starlette.types import Scope


TIMEOUT_HEADER: Final = "x-tpuserve-timeout-ms"
# Length of the JSON before the binary data of a body of the Open Inference Protocol.
JSON_LENGTH_NAME: Final = "Inference-Header-Content-Length"

_TIMEOUT: Final = TIMEOUT_HEADER.encode()
_PRIORITY: Final = PRIORITY_HEADER.encode()
_TIMING: Final = TIMING_REQUEST_HEADER.encode()
_REQUEST_ID: Final = REQUEST_ID_HEADER.encode()
_TRACEPARENT: Final = TRACEPARENT.encode()
_TRACESTATE: Final = TRACESTATE.encode()
_OBSERVED: Final = frozenset({_TIMING, _TRACEPARENT, _TRACESTATE})
_KNOWN: Final = _OBSERVED | {b"content-length", b"content-encoding", _TIMEOUT, _PRIORITY, _REQUEST_ID}
# A double has at most 17 significant digits, and clients divide seconds.
_MILLISECONDS = re.compile(rb"[0-9]{1,20}(\.[0-9]{1,20})?")
# Clients that want no timeout may send their largest integer. 1e13 ms is about three hundred years.
_MOST_MILLISECONDS = 1e13
_MOST_SHOWN = 32


class RequestHeaders(NamedTuple):
    """Values from the headers. `timeout_s` counts from the arrival of the request; inf if the client sent none."""

    coding: Coding | None = None
    timeout_s: float = math.inf
    priority: Priority = Priority.HIGH
    wants_timing: bool = False
    trace: TraceHeaders | None = None
    request_id: bytes | None = None


_PLAIN: Final = RequestHeaders()


def read_headers(scope: "Scope", limit_bytes: int) -> RequestHeaders:
    """Read the headers of a request.

    Raises:
        BodyTooLarge: the declared length of the body is over `limit_bytes`.
        UnsupportedEncoding: the body has an encoding other than gzip and deflate.
        InvalidArgument: the timeout, the priority or the wish for timing is invalid.
    """
    encodings: bytes | None = None
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name not in _KNOWN:
            continue
        if name == b"content-length":
            if _declared(value) > limit_bytes:
                raise BodyTooLarge(limit_bytes)
        elif name == b"content-encoding":
            # Two headers form one list (RFC 9110, 5.3). The server supports no list of encodings.
            encodings = value if encodings is None else b", ".join((encodings, value))
        else:
            found[name] = b", ".join((found[name], value)) if name in found else value
    coding = None if encodings is None else find_coding(encodings)
    if not (coding or found):
        return _PLAIN
    return RequestHeaders(
        coding,
        _timeout_s(found.get(_TIMEOUT)),
        parse_priority(found.get(_PRIORITY)),
        wants_timing(found.get(_TIMING)),
        _trace_of(found),
        found.get(_REQUEST_ID),
    )


def read_observed(scope: "Scope") -> tuple[bool, TraceHeaders | None]:
    """Return whether the client wants timing, and its trace, for a request without a body.

    Raises:
        InvalidArgument: the wish for timing is invalid.
    """
    found = {name: value for name, value in scope["headers"] if name in _OBSERVED}
    return wants_timing(found.get(_TIMING)), _trace_of(found)


def find_length(scope: "Scope") -> int:
    """Return the declared length of the body in bytes, or 0 if the client declares none."""
    return next((_declared(value) for name, value in scope["headers"] if name == b"content-length"), 0)


def find_request_id(scope: "Scope") -> bytes | None:
    """Return the client's request id, for a request whose headers were not read."""
    return next((value for name, value in scope["headers"] if name == _REQUEST_ID), None)


def find_timeout_s(scope: "Scope") -> float:
    """Return the client's timeout in seconds, or inf if it sent none or an invalid one."""
    for name, value in scope["headers"]:
        if name == _TIMEOUT:
            try:
                return _timeout_s(value)
            except InvalidArgument:
                break
    return math.inf


def _trace_of(found: Mapping[bytes, bytes]) -> TraceHeaders | None:
    traceparent = found.get(_TRACEPARENT)
    return None if traceparent is None else TraceHeaders(traceparent, found.get(_TRACESTATE))


def _declared(content_length: bytes) -> int:
    # The host refuses malformed lengths earlier, and `read_body` measures the body in any case.
    return int(content_length) if content_length.isdigit() and len(content_length) < 20 else 0


def _timeout_s(value: bytes | None) -> float:
    if value is None:
        return math.inf
    text = value.strip()
    if _MILLISECONDS.fullmatch(text) and (milliseconds := float(text)) > 0:
        return min(milliseconds, _MOST_MILLISECONDS) / 1000
    shown = value[:_MOST_SHOWN].decode("latin-1")
    raise InvalidArgument(f"{TIMEOUT_HEADER} must be a positive number of milliseconds; was {shown!r}")


_HTML: Final = "text/html"
_JSON: Final = "application/json"
# The least weight of a media type that a client takes.
LEAST_WEIGHT: Final = 1e-3


class MediaRange(NamedTuple):
    """A part of an Accept header, in lower case. `version` is empty if the client names none. 0 weighs "not at all"."""

    media_type: str
    version: str
    weight: float


def parse_accept(accept: str) -> list[MediaRange]:
    """Return the parts of an Accept header. A weight that is no number counts as 0."""
    return [_parse(part) for part in accept.lower().split(",")]


def prefers_html(accept: str) -> bool:
    """Return whether a client names HTML, as browsers do, and takes no JSON rather."""
    ranges = parse_accept(accept)
    html, json = (
        max((each.weight for each in ranges if each.media_type == wanted), default=0.0) for wanted in (_HTML, _JSON)
    )
    return html >= max(json, LEAST_WEIGHT)


def _parse(part: str) -> MediaRange:
    media_type, *parameters = (piece.strip() for piece in part.split(";"))
    version, weight = _parameter("version", parameters), _parameter("q", parameters)
    try:
        return MediaRange(media_type, version.strip('"'), float(weight or 1))
    except ValueError:
        return MediaRange(media_type, version, 0.0)


def _parameter(name: str, parameters: Sequence[str]) -> str:
    return next((value for key, _, value in (each.partition("=") for each in parameters) if key == name), "")
