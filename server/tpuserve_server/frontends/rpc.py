"""gRPC methods as hosts see them: functions from bytes to bytes, by method path. A host adds the transport."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tpuserve_server.core.deadline import Deadline
from tpuserve_server.core.priority import Priority
from tpuserve_server.frontends.priority import parse_priority

# Headers of a response on REST, trailers on gRPC: names in lower case, and ASCII values.
Trailers: TypeAlias = list[tuple[str, str]]


def _on_unix_socket() -> None:
    return None


@dataclass(frozen=True, slots=True)
class CallContext:
    """Deadline, metadata and priority of a call. Metadata keys are lower case.

    `raw_priority` is the value of PRIORITY_HEADER. Hosts find it without decoding the other metadata, because few
    calls have it.
    """

    deadline: Deadline
    metadata: Mapping[str, str]
    raw_priority: bytes | None = None
    # Returns the client's IP address, or None for a client of a UNIX socket. Few methods need it.
    find_client: Callable[[], str | None] = _on_unix_socket
    # When the host began to receive the message of a unary call, of `Clock.monotonic_s`; 0 for a stream.
    started_s: float = 0.0
    # Seconds between the arrival at Envoy and `started_s`; 0 without Envoy.
    lag_s: float = 0.0
    # A method adds to it, and the host sends it after the response or the error. None: the client wants no timing.
    trailers: Trailers | None = None

    @property
    def priority(self) -> Priority:
        """The parsed priority. Raises InvalidArgument for an unknown one."""
        return parse_priority(self.raw_priority)


@dataclass(frozen=True, slots=True)
class UnaryMethod:
    """One serialized request to one serialized response. Raises ServingError. Cancel its task to cancel the call."""

    handle: Callable[[bytes, CallContext], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class StreamMethod:
    """A stream of serialized requests to a stream of serialized responses. Server streaming reads only one request."""

    handle: Callable[[AsyncIterator[bytes], CallContext], AsyncIterator[bytes]]


# Methods by full path, such as "/tensorflow.serving.PredictionService/Predict".
RpcTable: TypeAlias = Mapping[str, UnaryMethod | StreamMethod]
