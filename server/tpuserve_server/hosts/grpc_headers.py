"""gRPC's own headers over HTTP/2: timeout, message, metadata (grpc/grpc, doc/PROTOCOL-HTTP2.md)."""

from collections.abc import Container, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar, overload
from urllib.parse import quote_from_bytes

from tpuserve_server.core.terms.deadline import Clock, Deadline
from tpuserve_server.core.terms.errors import Internal
from tpuserve_server.observe.requests.trace_context import TRACEPARENT, TRACESTATE, TraceHeaders
from tpuserve_server.protocols.raw_headers import find_header

if TYPE_CHECKING:
    from starlette.types import Scope

TRACE_NAME, _STATE_NAME = TRACEPARENT.encode(), TRACESTATE.encode()
_TRACE_NAMES = frozenset({TRACE_NAME, _STATE_NAME})

_Default = TypeVar("_Default")

RawHeaders = Iterable[tuple[bytes, bytes]]

# The specification's limit.
_MOST_TIMEOUT_DIGITS = 8
_UNIT_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}

# Every printable ASCII character except the percent sign stays unencoded.
_PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if code != 0x25)

# Headers of the transport, or headers already processed. Methods do not use them.
_NOT_METADATA = frozenset(
    {
        b"host",
        b"te",
        b"content-type",
        b"content-length",
        b"connection",
        b"transfer-encoding",
    }
)


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


class Metadata(Mapping[str, str]):
    """Metadata of a request. Decoded at the first access, because most methods never read it.

    Keys are lower case. Values of one key are joined by commas, in order. The value of a `-bin` key is its base64 text.
    """

    __slots__ = ("_decoded", "_headers")

    def __init__(self, headers: RawHeaders) -> None:
        self._headers = headers
        self._decoded: dict[str, str] | None = None

    def __getitem__(self, key: str) -> str:
        return self._read()[key]

    @overload
    def get(self, key: str) -> str | None: ...

    @overload
    def get(self, key: str, default: str | _Default) -> str | _Default: ...

    def get(self, key: str, default: str | _Default | None = None) -> str | _Default | None:
        """Return the value of a key, or `default`. Decodes no other value if it can read the headers again."""
        headers = self._headers
        # The metadata of grpcio can be read once only. A check for Sequence would take longer than the search.
        if self._decoded is None and isinstance(headers, (list, tuple)):
            value = find_header(headers, key) if _is_key(key) else None
        else:
            value = self._read().get(key)
        return default if value is None else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def _read(self) -> dict[str, str]:
        if self._decoded is None:
            self._decoded = {}
            for name, value in self._headers:
                if _is_metadata(name):
                    self._add(name.decode("ascii").lower(), value.decode("latin-1"), self._decoded)
        return self._decoded

    @staticmethod
    def _add(key: str, value: str, decoded: dict[str, str]) -> None:
        decoded[key] = f"{decoded[key]},{value}" if key in decoded else value


def _is_metadata(name: bytes) -> bool:
    # grpcio passes on names that HTTP does not allow (RFC 9110, 5.1). No method reads those.
    return name not in _NOT_METADATA and not name.startswith((b"grpc-", b":")) and name.isascii()


# The server itself reads few different keys.
@lru_cache(maxsize=32)
def _is_key(key: str) -> bool:
    return _is_metadata(key.encode())
