"""Transport of OTLP requests to a receiver. The two protocols have a module each."""

from pathlib import Path
from typing import Final, Protocol, cast

import grpc

from tpuserve_server.observe.tracing.export_error import ExportError, reason_of
from tpuserve_server.observe.tracing.receiver_reply import Rejection, read_rejection, read_retry_delay_s
from tpuserve_server.observe.tracing.target import OtlpTarget

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
    # Most servers need neither.
    if target.is_grpc:
        from tpuserve_server.observe.tracing.transport import GrpcTransport

        return GrpcTransport(target)
    from tpuserve_server.observe.tracing.http_transport import HttpTransport

    return HttpTransport(target)
