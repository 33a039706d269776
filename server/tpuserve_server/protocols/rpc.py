"""gRPC methods: functions from bytes to bytes, by method path. Hosts get them behind the guard, as guarded methods.

A host gets the handler of a method only by admitting a call. An admission needs the path, the metadata and the client
of a call, so it comes before the message. A host that forgets the admission has no handler to run.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from tpuserve_server.access.access import Access
from tpuserve_server.access.credentials import FindCertificate, no_certificate
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.observe.requests.trace_context import TraceHeaders
from tpuserve_server.protocols.priority import parse_priority

# The supervisor's process imports this module, and must not import numpy.
if TYPE_CHECKING:
    from tpuserve_server.core.batching.task import Outcome, Waiter
    from tpuserve_server.core.system.byte_parts import FindContents

# Headers of a response on REST, trailers on gRPC: names in lower case, and ASCII values.
Trailers: TypeAlias = list[tuple[str, str]]


def _on_unix_socket() -> None:
    return None


class CallContext:
    """Deadline, metadata and priority of a call. Metadata keys are lower case. No one may change it.

    No frozen dataclass, because that takes five times as long to create.
    """

    __slots__ = (
        "deadline", "find_certificate", "find_client", "metadata", "raw_priority", "request_id", "started_s",
        "trace_headers", "trailers", "wants_timing",
    )  # fmt: skip

    def __init__(
        self,
        deadline: Deadline,
        metadata: Mapping[str, str],
        raw_priority: bytes | None = None,
        find_client: Callable[[], str | None] = _on_unix_socket,
        started_s: float = 0.0,
        trailers: Trailers | None = None,
        wants_timing: bool = False,
        trace_headers: TraceHeaders | None = None,
        request_id: bytes | None = None,
        find_certificate: FindCertificate = no_certificate,
    ) -> None:
        """Store the arguments."""
        self.deadline = deadline
        self.metadata = metadata
        # The value of PRIORITY_HEADER. Hosts find it without decoding the other metadata, because few calls have it.
        self.raw_priority = raw_priority
        # Returns the client's IP address, or None for a client of a UNIX socket. Few methods need it.
        self.find_client = find_client
        # When a unary call reached the host, before its message, of `Clock.monotonic_s`; 0 for a stream.
        self.started_s = started_s
        # The meter adds to it, and the host sends it after the response or the error. None for a stream.
        self.trailers = trailers
        # Whether the client wants the stages of the call as a trailer.
        self.wants_timing = wants_timing
        # None: the client sent no trace context.
        self.trace_headers = trace_headers
        # The value of x-request-id, as the client sent it.
        self.request_id = request_id
        self.find_certificate = find_certificate

    @property
    def priority(self) -> Priority:
        """The parsed priority. Raises InvalidArgument for an unknown one."""
        return parse_priority(self.raw_priority)


# A message is bytes, or Body if the method has `find_contents`. No type of a handler can express this.
UnaryHandler: TypeAlias = Callable[[Any, CallContext], Awaitable[bytes]]
StreamHandler: TypeAlias = Callable[[AsyncIterator[Any], CallContext], AsyncIterator[bytes]]
_Handler = TypeVar("_Handler")


class LaneCall(Protocol):
    """A call that a lane has taken. One of its methods is called, once, and the call then has ended."""

    @property
    def is_ready(self) -> bool:
        """Whether `end` may be called at once, with any outcome. The waiter then gets none."""
        ...

    def end(self, outcome: "Outcome") -> bytes | Coroutine[Any, Any, bytes]:
        """Return the serialized response, or a coroutine that encodes a large one.

        Raises:
            ServingError: the request has failed.
        """
        ...

    def give_up(self, error: BaseException) -> None:
        """Report that `error` has ended the call before its outcome. Frees its place in the queue."""
        ...


class Lane(Protocol):
    """Calls of a method that need neither a task nor a coroutine."""

    # Answers a call that `begin` has left.
    long_way: "UnaryHandler"

    def begin(self, body: bytes, context: CallContext, waiter: "Waiter") -> LaneCall | None:
        """Queue a call whose outcome `waiter` gets, or return None before any effect, for the `long_way`.

        Raises:
            ServingError: the request has failed.
        """
        ...


@dataclass(frozen=True, slots=True)
class UnaryMethod:
    """One serialized request to one serialized response. Raises ServingError. Cancel its task to cancel the call.

    `access` is what a client needs for every message of the method.
    `max_message_bytes` is the limit of a message, if it is below the limit of the host. A host that knows the size of a
    message before it arrives refuses a larger one then.
    `find_contents` finds the contents of a large tensor in a message. The host aligns them (ByteParts).
    `lane` takes some of the calls of `handle`, with the same results, for hosts that save the tasks.
    """

    handle: UnaryHandler
    access: Access
    max_message_bytes: int | None = None
    find_contents: "FindContents | None" = None
    lane: Lane | None = None


@dataclass(frozen=True, slots=True)
class StreamMethod:
    """A stream of serialized requests to a stream of serialized responses. Server streaming reads only one request.

    The other fields are as for UnaryMethod.
    """

    handle: StreamHandler
    access: Access
    max_message_bytes: int | None = None
    find_contents: "FindContents | None" = None


# Methods by full path, such as "/tensorflow.serving.PredictionService/Predict".
RpcTable: TypeAlias = Mapping[str, UnaryMethod | StreamMethod]


@dataclass(frozen=True, slots=True)
class GuardedUnary:
    """A UnaryMethod behind the guard.

    A host calls `admit` once for each call, before it reads the message or allocates memory for it. The host then runs
    the returned handler in the same task and with the same context. `admit` raises ServingError for a refused call, and
    the host must not read the message of that call. An admission must not wait for the client, which may have left.

    Calls of `lane` need no admission. Only methods that admit every call have one.
    """

    admit: Callable[[CallContext], Awaitable[UnaryHandler]]
    access: Access
    max_message_bytes: int | None = None
    find_contents: "FindContents | None" = None
    lane: Lane | None = None


@dataclass(frozen=True, slots=True)
class GuardedStream:
    """A StreamMethod behind the guard. `admit` is as for GuardedUnary, before the first message."""

    admit: Callable[[CallContext], Awaitable[StreamHandler]]
    access: Access
    max_message_bytes: int | None = None
    find_contents: "FindContents | None" = None


GuardedMethod: TypeAlias = GuardedUnary | GuardedStream
# Guarded methods by full path.
GuardedTable: TypeAlias = Mapping[str, GuardedMethod]


def admit_every_call(table: RpcTable) -> GuardedTable:
    """Return a table that admits every call, for a server without a rule."""
    return {path: _open(method) for path, method in table.items()}


def _open(method: UnaryMethod | StreamMethod) -> GuardedMethod:
    facts = (method.access, method.max_message_bytes, method.find_contents)
    if isinstance(method, UnaryMethod):
        return GuardedUnary(_admitting(method.handle), *facts, method.lane)
    return GuardedStream(_admitting(method.handle), *facts)


def _admitting(handler: _Handler) -> Callable[[CallContext], Awaitable[_Handler]]:
    async def admit(_context: CallContext) -> _Handler:
        return handler

    return admit
