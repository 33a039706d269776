"""Transport of OTLP requests to a receiver over gRPC, and retries (OpenTelemetry's protocol/otlp.md).

HttpTransport has a separate module.
"""

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, cast

import grpc

from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.observe.tracing.options import OtlpTarget
from tpuserve_server.observe.tracing.receiver_reply import (
    ExportError,
    Rejection,
    read_rejection,
    read_retry_delay_s,
    reason_of,
)

_METHOD: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
# Codes for which OpenTelemetry's protocol allows a retry, and the one for which it does if the receiver names a delay.
_RETRYABLE: Final = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
_EXHAUSTED: Final = grpc.StatusCode.RESOURCE_EXHAUSTED
# Trailer with a serialized google.rpc.Status.
_DETAILS: Final = "grpc-status-details-bin"
# By default, grpcio waits for up to two minutes before it connects again to a receiver that was away.
_OPTIONS: Final = (("grpc.max_reconnect_backoff_ms", 5000),)


class GrpcTransport:
    """One channel. One thread calls `send`, any thread `close`."""

    def __init__(self, target: OtlpTarget) -> None:
        """Open the channel, which connects later. Raises ExportError for unusable certificates."""
        host = f"[{target.host}]" if ":" in target.host else target.host
        address = f"{host}:{target.port}"
        if target.is_tls:
            self._channel = grpc.secure_channel(address, _credentials(target), _OPTIONS)
        else:
            self._channel = grpc.insecure_channel(address, _OPTIONS)
        self._metadata = target.headers
        self._compression = grpc.Compression.Gzip if target.is_compressed else grpc.Compression.NoCompression
        self._export: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(_METHOD)

    def send(self, body: bytes, timeout_s: float) -> Rejection:
        """Send a request, and wait at most `timeout_s` for the response. See Transport."""
        try:
            response = self._export(body, timeout=timeout_s, metadata=self._metadata, compression=self._compression)
        except grpc.RpcError as error:
            # The errors of grpcio's calls are calls, too.
            call = cast("grpc.Call", error)
            raise ExportError(f"{call.code().name}: {call.details()}", retry_after_s=_retry_after_s(call)) from error
        except ValueError as error:  # The channel is closed.
            raise ExportError("the server stops") from error
        return read_rejection(response)

    def close(self) -> None:
        """End the channel, and a `send` that waits on it."""
        self._channel.close()


def _retry_after_s(call: grpc.Call) -> float | None:
    """Return when to send a failed request again, or None for an error that a retry does not change."""
    details = dict(call.trailing_metadata() or ()).get(_DETAILS, b"")
    delay_s = read_retry_delay_s(details) if isinstance(details, bytes) else None
    if call.code() in _RETRYABLE:
        return delay_s or 0.0
    return delay_s if call.code() is _EXHAUSTED else None


def _credentials(target: OtlpTarget) -> grpc.ChannelCredentials:
    try:
        authorities, key, certificate = map(_read, (target.ca_file, target.key_file, target.certificate_file))
    except OSError as error:
        raise ExportError(f"a certificate cannot be used: {reason_of(error)}") from error
    return grpc.ssl_channel_credentials(authorities, key, certificate)


def _read(path: str | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()


class Transport(Protocol):
    """Sends serialized ExportTraceServiceRequests. One thread calls `send`, any thread `close`."""

    def send(self, body: bytes, timeout_s: float) -> Rejection:
        """Send a request, and return the rejection in the response, which is usually empty. Raises ExportError."""
        ...

    def close(self) -> None:
        """End the connection, and a `send` that waits on it."""
        ...


def open_transport(target: OtlpTarget) -> Transport:
    """Return the transport of a receiver, without connecting. Raises ExportError for unusable certificates."""
    if target.is_grpc:
        return GrpcTransport(target)
    # Imported here, because most servers need no client of HTTP.
    from tpuserve_server.observe.tracing.http_transport import HttpTransport

    return HttpTransport(target)


# Pause before the first retry. It doubles with each further one. The doubling bounds their number: with the default
# timeout of 10 s there are at most five.
_FIRST_PAUSE_S: Final = 0.5
# The random part keeps servers from sending again all at once.
_LEAST_SHARE: Final = 0.5
# Limit of an export after `hurry`. Hosts wait 5 s for all parts of the application (`hosts/serving_process.py`).
_LAST_SEND_S: Final = 2.0


class RetryingSender:
    """Sends requests to one receiver. One thread calls `send`, any thread `hurry` and `close`."""

    def __init__(
        self, transport: Transport, timeout_s: float, clock: Clock, draw: Callable[[], float] = random.random
    ) -> None:
        """Limit a request with all its retries to `timeout_s`. `draw` returns a number from 0 up to 1."""
        self._transport = transport
        self._timeout_s = timeout_s
        self._clock = clock
        self._draw = draw
        self._hurried = threading.Event()

    @property
    def is_hurried(self) -> bool:
        """Whether `hurry` was called."""
        return self._hurried.is_set()

    def send(self, body: bytes) -> Rejection:
        """Send a request until the receiver takes it, refuses it, or the time does not suffice for another retry.

        Blocks for at most about the timeout. Raises the ExportError of the last attempt.
        """
        pause_s, ends_s = _FIRST_PAUSE_S, self._ends_s()
        while True:
            try:
                return self._transport.send(body, max(ends_s - self._clock.monotonic_s(), 0.001))
            except ExportError as error:
                if error.retry_after_s is None or self._hurried.is_set():
                    raise
                wait_s = max(pause_s * (_LEAST_SHARE + _LEAST_SHARE * self._draw()), error.retry_after_s)
                if self._clock.monotonic_s() + wait_s >= ends_s:
                    raise
            if self._hurried.wait(wait_s):
                ends_s = min(ends_s, self._ends_s())
            pause_s *= 2

    def hurry(self) -> None:
        """End the pause before a retry, and make no further ones. Later requests get little time."""
        self._hurried.set()

    def close(self) -> None:
        """End the connection, and a `send` that waits on it."""
        self._transport.close()

    def _ends_s(self) -> float:
        limit_s = min(self._timeout_s, _LAST_SEND_S) if self._hurried.is_set() else self._timeout_s
        return self._clock.monotonic_s() + limit_s
