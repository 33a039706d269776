"""Transport of OTLP requests to a receiver. The two protocols have a module each."""

from typing import Protocol

from tpuserve_server.telemetry.tracing.receiver_reply import Rejection
from tpuserve_server.telemetry.tracing.target import OtlpTarget


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
        from tpuserve_server.telemetry.tracing.grpc_transport import GrpcTransport

        return GrpcTransport(target)
    from tpuserve_server.telemetry.tracing.http_transport import HttpTransport

    return HttpTransport(target)
