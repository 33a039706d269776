"""RequestMeter: counts and times every request of every protocol."""

import asyncio
from types import TracebackType

from tpuserve_server.core.deadline import Clock, Deadline
from tpuserve_server.core.errors import Code, ServingError
from tpuserve_server.core.metrics import Metrics
from tpuserve_server.core.priority import Priority
from tpuserve_server.core.response_cache import Recall
from tpuserve_server.core.service import AcquiredModel, AcquiredVersion, InferenceService
from tpuserve_server.core.task_times import TaskTimes
from tpuserve_server.frontends.rpc import CallContext, Trailers
from tpuserve_server.frontends.timing import SERVER_TIMING_HEADER, server_timing, stages_of

_NEVER = Deadline.never()
# Event loops may run a timer this early: uvloop counts in whole milliseconds.
_TIMER_ERROR_S = 0.002


class RequestMeter:
    """Measures the requests of one protocol (`grpc` or `rest`)."""

    def __init__(self, service: InferenceService, metrics: Metrics, clock: Clock, protocol: str) -> None:
        """Report to `metrics`. `service` lists the models, so that names that clients invent never become labels."""
        self._service = service
        self._metrics = metrics
        self._clock = clock
        self._protocol = protocol

    def call(self, method: str, context: CallContext) -> "MeasuredRequest":
        """Return a context manager for one gRPC call whose message is complete. See `request`."""
        request = MeasuredRequest(self, method, context.deadline, self._clock.monotonic_s())
        if context.started_s:
            request.started_s, request.lag_s = context.started_s, context.lag_s
        request.trailers = context.trailers
        return request

    def request(self, method: str, deadline: Deadline = _NEVER) -> "MeasuredRequest":
        """Start the clock and return a context manager for one request.

        The exception that leaves the context decides the reported code. A cancellation after `deadline` counts as
        DEADLINE_EXCEEDED, because hosts cancel requests that miss their deadline.
        """
        return MeasuredRequest(self, method, deadline, self._clock.monotonic_s())

    def finished(self, request: "MeasuredRequest", error: BaseException | None) -> None:
        """Report one request. The report names the model if the request succeeded or the model exists."""
        now_s = self._clock.monotonic_s()
        if request.trailers is not None:
            request.trailers.append((SERVER_TIMING_HEADER, server_timing(stages_of(request, now_s))))
        model = request.model
        if error is not None and model and model not in self._service.models():
            model = ""
        self._metrics.request_finished(
            model=model,
            version=request.version,
            signature=request.signature,
            method=request.method,
            protocol=self._protocol,
            code=_code(error, request.deadline, now_s),
            latency_s=now_s - request.started_s,
        )
        if error is None and request.is_tracked and request.acquired is not None:
            request.acquired.record_latency(request.signature, now_s - request.received_s)
        if request.examples:
            self._metrics.examples_received(model=model, count=request.examples)


class MeasuredRequest:
    """One request in flight. Front-ends set its method, model and number of tf.Examples, and call `runs`."""

    __slots__ = (
        "_meter", "acquired", "deadline", "examples", "is_recalled", "is_tracked", "lag_s", "method", "model",
        "received_s", "signature", "started_s", "trailers", "version",
    )  # fmt: skip

    def __init__(self, meter: RequestMeter, method: str, deadline: Deadline, started_s: float) -> None:
        """Create the request; see `RequestMeter.request`."""
        self._meter = meter
        self.method = method
        self.model = ""
        self.version: int | None = None
        self.signature = ""
        self.examples = 0
        self.deadline = deadline
        self.started_s = started_s
        # Seconds between the arrival at Envoy and `started_s`; 0 without Envoy.
        self.lag_s = 0.0
        # When the complete request had arrived: a client may send slowly.
        self.received_s = started_s
        # The meter adds the stages at the end of the request, also if it fails. They become headers on REST and
        # trailers on gRPC. None: the client does not want them.
        self.trailers: Trailers | None = None
        # The version that runs the request. It may be released.
        self.acquired: AcquiredModel | AcquiredVersion | None = None
        # Whether the request counts towards the version's latency objective.
        self.is_tracked = False
        # Whether the response came from the cache, before its request was decoded.
        self.is_recalled = False

    def __enter__(self) -> "MeasuredRequest":
        """Return the request itself."""
        return self

    def runs(
        self, acquired: AcquiredModel | AcquiredVersion, signature: str = "", priority: Priority = Priority.HIGH
    ) -> None:
        """Record the version and signature that the request resolved to.

        `signature` is empty for a request that runs several signatures. A high-priority request also counts towards the
        signature's latency objective, if it has one.
        """
        self.version = acquired.servable_id.version
        self.signature = signature
        self.acquired = acquired
        self.is_tracked = priority is Priority.HIGH and acquired.has_objective(signature)

    def recalls(self, recall: Recall, signature: str) -> None:
        """Record the version and signature of a response from the cache. It counts towards no latency objective."""
        self.version = recall.servable_id.version
        self.signature = signature
        self.is_recalled = True

    @property
    def is_cached(self) -> bool:
        """Whether the response came from the cache, before or after the request was decoded."""
        # Another signature of the request may have run.
        return self.is_recalled or (self.acquired is not None and self.acquired.is_recalled and not self.times)

    @property
    def times(self) -> tuple[TaskTimes, ...]:
        """When the request passed through batchers: once, several times, or not at all."""
        return () if self.acquired is None else self.acquired.times

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Report the request. An exception propagates."""
        self._meter.finished(self, error)


def _code(error: BaseException | None, deadline: Deadline, now_s: float) -> Code:
    if error is None:
        return Code.OK
    if isinstance(error, ServingError):
        return error.code
    if isinstance(error, asyncio.CancelledError):
        return Code.DEADLINE_EXCEEDED if deadline.expired(now_s + _TIMER_ERROR_S) else Code.CANCELLED
    return Code.INTERNAL
