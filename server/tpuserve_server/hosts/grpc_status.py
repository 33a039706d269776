"""Statuses of gRPC calls: from an exception to a status, and from a response or a status to ASGI messages."""

import math
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tpuserve_server.core.terms.errors import Code, ServingError
from tpuserve_server.hosts.grpc_frames import ACCEPTED_ENCODINGS, frame
from tpuserve_server.hosts.grpc_headers import encode_message
from tpuserve_server.protocols.rpc import Trailers
from tpuserve_server.protocols.status import grpc_message, log_internal

if TYPE_CHECKING:
    from starlette.types import Message, Send

# Trailing metadata with the delay before a retry (gRPC proposal A6, client retries).
PUSHBACK = "grpc-retry-pushback-ms"
_MAX_INT32 = 2**31 - 1
CONTENT_TYPE: Final = (b"content-type", b"application/grpc")
# Servers do not modify messages, so all calls share these.
START: "Final[Message]" = {"type": "http.response.start", "status": 200, "headers": [CONTENT_TYPE], "trailers": True}
END: "Final[Message]" = {"type": "http.response.body", "body": b""}
_OK: "Final[Message]" = {"type": "http.response.trailers", "headers": [(b"grpc-status", b"0")]}


class RpcFailure(NamedTuple):
    """A status other than OK."""

    code: Code
    message: str
    # Delay before a retry of the call. None if unknown.
    retry_after_s: float | None = None

    @property
    def pushback_ms(self) -> int | None:
        """The value of PUSHBACK in whole milliseconds, at least 1, or None."""
        return None if self.retry_after_s is None else pushback_ms(self.retry_after_s)


def pushback_ms(retry_after_s: float) -> int:
    """Return the value of PUSHBACK in whole milliseconds, at least 1."""
    return min(max(math.ceil(retry_after_s * 1000), 1), _MAX_INT32)


SHUTTING_DOWN = RpcFailure(Code.UNAVAILABLE, "The server is shutting down")


def unknown_method(path: str) -> RpcFailure:
    """Return the status for a path that is not in the table."""
    return RpcFailure(Code.UNIMPLEMENTED, f"Unknown method {path}")


def failure_of(error: Exception, path: str, trailers: Trailers) -> RpcFailure:
    """Return the status for an error that a method raised. An internal error gets a request id among `trailers`.

    Any error except a ServingError is a bug in the server: log it and hide it from the client.
    """
    if isinstance(error, ServingError):
        if error.code is Code.INTERNAL:
            log_internal(error, path, trailers)
        return RpcFailure(error.code, grpc_message(error.message), error.retry_after_s)
    log_internal(error, path, trailers)
    return RpcFailure(Code.INTERNAL, "Internal error")


def status_headers(failure: RpcFailure) -> list[tuple[bytes, bytes]]:
    """Return the headers or trailers of a status other than OK."""
    headers = [(b"grpc-status", b"%d" % failure.code), (b"grpc-message", encode_message(failure.message))]
    if (pushback_ms := failure.pushback_ms) is not None:
        headers.append((PUSHBACK.encode(), b"%d" % pushback_ms))
    return headers


def encoded(trailers: Sequence[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """Return trailing metadata as raw headers."""
    return [(name.encode(), value.encode()) for name, value in trailers] if trailers else []


def ok(more: list[tuple[bytes, bytes]]) -> "Message":
    """Return the trailers of the status OK, with `more` metadata."""
    return {**_OK, "headers": [*_OK["headers"], *more]} if more else _OK


def answer(
    send: "Send", reply: bytes | RpcFailure, trailers: Sequence[tuple[str, str]] = ()
) -> Coroutine[Any, Any, None]:
    """Return a coroutine that sends a whole response, of which it has a copy.

    A failure has only headers, which gRPC calls trailers-only.
    """
    more = encoded(trailers)
    if isinstance(reply, bytes):
        return send_all(send, START, {"type": "http.response.body", "body": frame(reply)}, ok(more))
    headers = [CONTENT_TYPE, *status_headers(reply), (b"grpc-accept-encoding", ACCEPTED_ENCODINGS), *more]
    return send_all(send, {"type": "http.response.start", "status": 200, "headers": headers}, END)


async def send_all(send: "Send", *messages: "Message") -> None:
    """Send messages to a client that may have gone."""
    try:
        for message in messages:
            await send(message)
    except OSError:  # ASGI's signal for a disconnect.
        return
