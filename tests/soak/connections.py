"""Connections of one client: a gRPC channel and an HTTP/1.1 pool, both with TLS, and what their failures mean."""

import asyncio
import gc
import gzip
import json
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import grpc
import httpx

from tests.soak.hints import PATIENCE_S, Hints
from tests.soak.outcome import Kind, Outcome, RequestError
from tests.soak.question import WrongAnswerError

PRIORITY: Final = "x-tpuserve-priority"
# A separate channel, which connects again soon after a new start of the server.
_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)
# Details of errors that gRPC's client makes itself, for a server that does not listen, and for one that ended.
_NOT_CONNECTED: Final = ("failed to connect", "connection refused", "handshake", "connections to all backends")
_CONNECTION_ENDED: Final = ("socket closed", "connection reset", "broken pipe", "recvmsg", "goaway", "endpoint closing")
_CODES: Final = {
    400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED", 409: "ABORTED", 429: "RESOURCE_EXHAUSTED", 499: "CANCELLED", 500: "INTERNAL",
    501: "UNIMPLEMENTED", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Address:
    """The addresses of a server, and the authority of its certificates. `rest` is a URL."""

    grpc: str
    rest: str
    ca: Path

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca)


class Connections:
    """The connections of one client, which sends one request at a time."""

    def __init__(self, address: Address) -> None:
        """Connect at the first request."""
        credentials = grpc.ssl_channel_credentials(address.ca.read_bytes())
        # `Any`: its stubs need serializers.
        self.channel: Any = grpc.aio.secure_channel(address.grpc, credentials, options=_OPTIONS)
        # Streams have a channel of threads. grpc.aio loses the status of a stream that ends while it sends.
        self._streams: Any = grpc.secure_channel(address.grpc, credentials, options=_OPTIONS)
        self.http = httpx.AsyncClient(base_url=address.rest, timeout=PATIENCE_S, verify=address.context())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.channel.close()
        self._streams.close()
        await self.http.aclose()
        # grpc.aio keeps the connection of a closed channel until the garbage collector finds the channel. Idle
        # connections of clients that have ended would look like a leak of the server.
        gc.collect()

    async def call(self, path: str, body: bytes, hints: Hints) -> bytes:
        """Return the response to a unary call. Raises RequestError."""
        start_s = time.monotonic()
        try:
            content: bytes = await self.channel.unary_unary(path)(body, **call_options(hints))
        except grpc.aio.AioRpcError as error:
            raise grpc_error(error, time.monotonic() - start_s) from error
        return content

    async def stream(self, path: str, bodies: Sequence[bytes], hints: Hints) -> list[bytes]:
        """Return the responses of a stream. Raises RequestError.

        Errors of its requests are gRPC statuses with a code. Otherwise they are messages with a text alone.
        """
        options = call_options(hints)
        options["metadata"] = (*options["metadata"], ("triton_grpc_error", "true"))
        start_s = time.monotonic()
        try:
            return await asyncio.to_thread(lambda: list(self._streams.stream_stream(path)(iter(bodies), **options)))
        except grpc.RpcError as error:
            raise grpc_error(error, time.monotonic() - start_s) from error

    async def request(
        self, method: str, path: str, body: bytes | None, hints: Hints, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Return the response with the status 200. Raises RequestError, or WrongAnswerError for a malformed error."""
        sent = dict(headers or {})
        if hints.is_low:
            sent[PRIORITY] = "low"
        if hints.is_short:
            sent["x-tpuserve-timeout-ms"] = str(hints.timeout_s * 1000)
        if body is not None and hints.is_compressed:
            sent["content-encoding"], body = "gzip", gzip.compress(body, 1)
        try:
            response = await self.http.request(method, path, content=body, headers=sent)
        except httpx.HTTPError as error:
            raise RequestError(_http_error(error)) from error
        if response.status_code != 200:
            raise RequestError(_refusal(response))
        return response


def call_options(hints: Hints) -> dict[str, Any]:
    """Return the options of a gRPC call."""
    return {
        "timeout": hints.timeout_s,
        "metadata": ((PRIORITY, "low"),) if hints.is_low else (),
        "compression": grpc.Compression.Gzip if hints.is_compressed else None,
    }


def grpc_error(error: grpc.RpcError | grpc.aio.AioRpcError, elapsed_s: float) -> RequestError:
    """Return the outcome of a failed call after `elapsed_s`."""
    details = (error.details() or "").lower()
    code = error.code().name
    kind = Kind.ERROR
    if code == "DEADLINE_EXCEEDED" and elapsed_s >= PATIENCE_S - 1:
        kind = Kind.LATE
    elif code == "UNAVAILABLE" and any(words in details for words in _NOT_CONNECTED):
        kind = Kind.REFUSED
    elif code == "UNAVAILABLE" and any(words in details for words in _CONNECTION_ENDED):
        kind = Kind.ENDED
    return RequestError(Outcome(kind, code if kind is Kind.ERROR else "", f"{code}: {error.details()}"))


def _http_error(error: httpx.HTTPError) -> Outcome:
    detail = repr(error)
    if isinstance(error, httpx.ConnectTimeout) or (
        isinstance(error, httpx.ConnectError) and "CERTIFICATE_VERIFY_FAILED" not in detail
    ):
        return Outcome(Kind.REFUSED, detail=detail)
    return Outcome(Kind.LATE if isinstance(error, httpx.TimeoutException) else Kind.ENDED, detail=detail)


def _refusal(response: httpx.Response) -> Outcome:
    """Return the typed error. Each has a message, and those that invite a retry contain the time."""
    status = response.status_code
    message = read_or_wrong(lambda: str(response.json()["error"]), response)
    if status in (429, 503) and not response.headers.get("retry-after", "").isdigit():
        raise WrongAnswerError(f"{status} without Retry-After: {message}")
    return Outcome(Kind.ERROR, _CODES.get(status, f"HTTP {status}"), message)


def read_or_wrong(read: Callable[[], str], response: httpx.Response) -> str:
    """Return what `read` finds in the response. Raises WrongAnswerError if the response lacks it."""
    try:
        return read()
    except (json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise WrongAnswerError(f"{response.status_code} {response.content!r:.600}: {error!r}") from error
