"""gRPC's own headers over HTTP/2: content type, timeout, message and trace (grpc/grpc, doc/PROTOCOL-HTTP2.md)."""

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote_from_bytes

from tpuserve_server.core.terms.deadline import Clock, Deadline
from tpuserve_server.core.terms.errors import Internal
from tpuserve_server.hosts.grpc_metadata import RawHeaders
from tpuserve_server.observe.requests.trace_context import TRACEPARENT, TRACESTATE, TraceHeaders

if TYPE_CHECKING:
    from starlette.types import Scope

TRACE_NAME, _STATE_NAME = TRACEPARENT.encode(), TRACESTATE.encode()
_TRACE_NAMES = frozenset({TRACE_NAME, _STATE_NAME})

# The specification's limit.
_MOST_TIMEOUT_DIGITS = 8
_UNIT_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}

# Every printable ASCII character except the percent sign stays unencoded.
_PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if code != 0x25)


def is_grpc(content_type: bytes) -> bool:
    """Return whether the content type is `application/grpc`, with or without a suffix (`+proto`) or parameters."""
    return content_type == b"application/grpc" or content_type.startswith((b"application/grpc+", b"application/grpc;"))


def is_grpc_request(scope: "Scope", headers: Mapping[bytes, bytes], methods: Container[str]) -> bool:
    """Return whether gRPC handles a request, by its content type, on any port.

    gRPC also handles requests for its `methods` with other content types, in order to refuse them.
    """
    return headers.get(b"content-type", b"").startswith(b"application/grpc") or scope["path"] in methods


def deadline_of(timeout: bytes | None, clock: Clock) -> Deadline:
    """Return the deadline of a `grpc-timeout` header. Raises Internal if it is malformed, as grpc-go does."""
    if timeout is None:
        return Deadline.never()
    # A regular expression takes twice as long, and most clients send a timeout.
    digits, unit_s = timeout[:-1], _UNIT_S.get(timeout[-1:])
    if unit_s is None or len(digits) > _MOST_TIMEOUT_DIGITS or not digits.isdigit():
        raise Internal(f"malformed grpc-timeout: {timeout[:32].decode('latin-1')!r}")
    return Deadline.after(int(digits) * unit_s, clock)


def encode_message(message: str) -> bytes:
    """Encode a `grpc-message` value: UTF-8, percent-encoded."""
    return quote_from_bytes(message.encode(errors="replace"), safe=_PLAIN).encode("ascii")


def trace_headers_of(headers: RawHeaders) -> TraceHeaders:
    """Return the trace headers. Values of one name are joined: valid for tracestate, and invalid for the others."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _TRACE_NAMES:
            found[name] = b",".join((found[name], value)) if name in found else value
    return TraceHeaders(found.get(TRACE_NAME, b""), found.get(_STATE_NAME))
