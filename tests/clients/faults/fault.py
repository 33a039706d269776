"""The faults that the proxy injects."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias


class Fault(enum.Enum):
    """A fault of a connection or of one request. The value describes it."""

    # The next attempts to connect, and all connections that exist.
    REFUSE = "port closed"
    BLACK_HOLE = "existing connections go dead without a close, new connections work"
    SLOW_HANDSHAKE = "the server accepts the connection and answers its first bytes late"
    # The next request. The upstream does not execute it.
    CUT_BEFORE_READ = "connection cut before the request was read"
    REFUSED_STREAM = "RST_STREAM REFUSED_STREAM"
    GOAWAY_UNPROCESSED = "GOAWAY NO_ERROR, the request was not processed"
    ENHANCE_YOUR_CALM = "GOAWAY ENHANCE_YOUR_CALM, the request was not processed"
    # The next request. The upstream executes it.
    CUT_AFTER_READ = "connection cut after the request was executed"
    CUT_IN_RESPONSE = "connection cut in the middle of the response"
    HALF_CLOSE = "the server executes the request and closes its sending side only"
    TRUNCATE = "half of the response body, as a complete response"
    DRIP = "the response arrives byte by byte"
    # After the response to the next request.
    GOAWAY_AFTER_RESPONSE = "GOAWAY NO_ERROR after the response"
    CLOSE_AFTER_RESPONSE = "idle connection closed after the response"


@dataclass(frozen=True, slots=True)
class Answer:
    """A response of the proxy itself: the upstream does not execute the request.

    Without a body, the headers of an HTTP/2 response are also its trailers, as in gRPC's responses without a message.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


Injection: TypeAlias = Fault | Answer

UNAVAILABLE: Final = 14


def grpc_error(code: int, message: str, pushback_ms: int | None = None) -> Answer:
    """Return gRPC's form of an error, with or without the server's pushback (gRPC proposal A6)."""
    hint = {} if pushback_ms is None else {"grpc-retry-pushback-ms": str(pushback_ms)}
    return Answer(200, {"content-type": "application/grpc", "grpc-status": str(code), "grpc-message": message, **hint})


def rest_error(status: int, message: str, retry_after: str | None = None) -> Answer:
    """Return the REST form of an error, with or without Retry-After."""
    hint = {} if retry_after is None else {"retry-after": retry_after}
    return Answer(status, {"content-type": "application/json", **hint}, b'{"error": "%b"}' % message.encode())


def page(status: int) -> Answer:
    """Return an HTML page, as a gateway sends in front of a server that is down."""
    return Answer(status, {"content-type": "text/html"}, b"<html><h1>Bad Gateway</h1><hr>nginx</html>")
