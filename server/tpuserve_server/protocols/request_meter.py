"""RequestMeter: counts and times every request of every protocol, and shows each to observers at its end."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NamedTuple

from tpuserve_server.access.caller import caller_name
from tpuserve_server.core.models.metrics import Metrics
from tpuserve_server.core.models.response_cache import Recall
from tpuserve_server.core.serving.service import AcquiredModel, AcquiredVersion, InferenceService
from tpuserve_server.core.terms.batch_run import TaskTimes
from tpuserve_server.core.terms.deadline import Clock, Deadline
from tpuserve_server.core.terms.errors import SERVER_FAULTS, Code, Fault, ServingError, TooLarge, TooLate
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.observe.requests.request_record import (
    MOST_ERROR_CHARACTERS,
    NO_OBSERVERS,
    Observers,
    RequestRecord,
    RequestWatcher,
    stages_of,
)
from tpuserve_server.observe.requests.trace_context import (
    TRACERESPONSE,
    TraceContext,
    TraceHeaders,
    client_trace_id,
    identify_response,
    read_request_id,
)
from tpuserve_server.protocols.rpc import CallContext, Trailers
from tpuserve_server.protocols.timing import SERVER_TIMING_HEADER, server_timing

_NEVER = Deadline.never()
# Python 3.11 takes 0.2 us to find a member of an enumeration, and every request needs these.
_OK, _HIGH = Code.OK, Priority.HIGH
_NO_WATCHERS: tuple[RequestWatcher, ...] = ()
# Event loops may run a timer this early: uvloop counts in whole milliseconds.
_TIMER_ERROR_S = 0.002
# The meter counts the stages of one request in this many, because this takes 14 us. A prime number: neither
# batches nor clients in turn repeat with it. Below _FEW_PER_S requests per second, the meter counts all.
_SAMPLED = 127
_FEW_PER_S = 100.0


class RequestMeter:
    """Measures the requests of one protocol (`grpc` or `rest`)."""

    def __init__(
        self,
        service: InferenceService,
        metrics: Metrics,
        clock: Clock,
        protocol: str,
        observers: Observers = NO_OBSERVERS,
    ) -> None:
        """Report to `metrics` and to `observers`.

        `service` lists the models, so that names that clients invent never become labels.
        """
        self._service = service
        self._watchers = observers.watchers
        self._tracing = observers.tracing
        self._metrics = metrics
        self._clock = clock
        self._protocol = protocol
        # Requests that have begun and not ended.
        self.in_flight = 0
        # Requests until the next one whose stages are counted, those that it stands for, and the end of the last one.
        self._until_sample = self._stands_for = 1
        self._sampled_s = clock.monotonic_s()
        metrics.protocol_served(protocol=protocol, in_flight=lambda: self.in_flight)

    def call(self, method: str, context: CallContext) -> "MeasuredRequest":
        """Return a context manager for one gRPC call that is refused, or whose message is complete. See `request`."""
        request = MeasuredRequest(self, method, context.deadline, self._clock.monotonic_s())
        # A stream has none.
        if context.started_s:
            request.started_s = context.started_s
        request.trailers = context.trailers
        request.wants_timing = context.wants_timing
        request.trace_headers = context.trace_headers
        request.request_id = context.request_id
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
        self.in_flight -= 1
        latency_s = now_s - request.started_s
        if request.wants_timing and request.trailers is not None:
            request.trailers.append((SERVER_TIMING_HEADER, server_timing(stages_of(request, now_s))))
        model, code = (request.model, _OK) if error is None else self._failed(request, error, now_s)
        if error is not None:
            self._metrics.request_failed(
                model=model,
                version=request.version,
                method=request.method,
                code=code,
                fault=self._fault(request, model, error, code),
            )
        trace = None if self._tracing is None else self._tracing.sample(request.trace_headers, latency_s)
        self._metrics.request_finished(
            model=model,
            version=request.version,
            signature=request.signature,
            method=request.method,
            protocol=self._protocol,
            code=code,
            latency_s=latency_s,
            trace_id="" if trace is None else trace.trace_id,
        )
        watchers = [watcher for watcher in self._watchers if watcher.wants(latency_s, now_s, code)]
        self._observe(request, model, code, error, now_s, trace, watchers)

    def series(self, method: str, model: str, acquired: AcquiredModel) -> "RequestSeries":
        """Return the series of requests of `method` for a model that exists, of the acquired version and signature."""
        version, signature = acquired.servable_id.version, acquired.signature.name
        record = self._metrics.answers_of(
            model=model, version=version, signature=signature, method=method, protocol=self._protocol
        )
        return RequestSeries(method, model, version, signature, acquired.has_objective(signature), record)

    def answered(
        self, series: "RequestSeries", started_s: float, trace_headers: TraceHeaders | None, *, wants_timing: bool
    ) -> "Observed | None":
        """Report one request of a series that succeeded, as `finished` does. The caller has counted it in `in_flight`.

        Return the rest of the report for `observe`, or None if no one observes the request.
        """
        now_s = self._clock.monotonic_s()
        self.in_flight -= 1
        latency_s = now_s - started_s
        trace = None if self._tracing is None else self._tracing.sample(trace_headers, latency_s)
        series.record(latency_s, "" if trace is None else trace.trace_id)
        wanting = _NO_WATCHERS
        for watcher in self._watchers:
            if watcher.wants(latency_s, now_s, _OK):
                wanting = (*wanting, watcher)
        if wanting or trace is not None or wants_timing or series.is_tracked or self._until_sample == 1:
            return Observed(now_s, trace, wanting)
        self._until_sample -= 1
        return None

    def observe(self, request: "MeasuredRequest", seen: "Observed") -> None:
        """Report the rest of a request that `answered` has returned."""
        if request.wants_timing and request.trailers is not None:
            request.trailers.append((SERVER_TIMING_HEADER, server_timing(stages_of(request, seen.now_s))))
        self._observe(request, request.model, _OK, None, seen.now_s, seen.trace, seen.watchers)

    def measured(
        self, series: "RequestSeries", context: CallContext, received_s: float, acquired: AcquiredModel
    ) -> "MeasuredRequest":
        """Return a gRPC call of a series whose message was complete at `received_s`, for `finished` or `observe`."""
        request = self.call(series.method, context)
        request.received_s = received_s
        if not context.started_s:
            request.started_s = received_s
        request.model = series.model
        request.serves(acquired, series, context.priority)
        return request

    def _observe(
        self,
        request: "MeasuredRequest",
        model: str,
        code: Code,
        error: BaseException | None,
        now_s: float,
        trace: TraceContext | None,
        watchers: Sequence[RequestWatcher],
    ) -> None:
        """Give a request that has ended to the parts that record it.

        Not called for every request of the lane: count in `finished` and in `answered`.
        """
        record = None
        if self._tracing is not None and trace is not None:
            if request.trailers is not None:
                request.trailers.append((TRACERESPONSE, trace.header))
            record = self._record(request, model, code, error, now_s, trace)
            self._tracing.export(record)
        for watcher in watchers:
            record = record or self._record(request, model, code, error, now_s, trace)
            watcher.watch(record)
        if error is None and request.is_tracked and request.acquired is not None:
            request.acquired.record_latency(request.signature, now_s - request.received_s)
        if request.examples:
            self._metrics.examples_received(model=model, count=request.examples)
        self._until_sample -= 1
        if not self._until_sample:
            self._count_stages(request, model, now_s)

    def _failed(self, request: "MeasuredRequest", error: BaseException, now_s: float) -> tuple[str, Code]:
        """Return the model, if it exists, and the code of a request that has failed."""
        code = _code(error, request.deadline, now_s)
        if code is Code.INTERNAL and request.trailers is not None:
            request.request_id = identify_response(request.trailers).encode()
        return (request.model if request.model in self._service.models() else "", code)

    def _fault(self, request: "MeasuredRequest", model: str, error: BaseException, code: Code) -> Fault:
        """Return whether the server or the client caused a failure. `model` is empty if it is not configured.

        The server answers for a configured model without a version that serves. The client answers for a timeout that
        is shorter than the fastest run. The timeout counts from the arrival of the request, so that a server which is
        slow to read it does not excuse itself.
        """
        if code is Code.NOT_FOUND:
            return "server" if model and not self._service.is_served(model) else "client"
        if code not in SERVER_FAULTS or isinstance(error, TooLarge):
            return "client"
        if code is Code.DEADLINE_EXCEEDED or isinstance(error, TooLate):
            timeout_s = min(request.timeout_s, request.deadline.remaining_s(request.started_s))
            fastest_s = 0.0 if request.acquired is None else request.acquired.fastest_s(request.signature)
            return "client" if timeout_s <= fastest_s else "server"
        return "server"

    def _count_stages(self, request: "MeasuredRequest", model: str, now_s: float) -> None:
        """Count the stages of a request as those of all since the last one, and choose the next one."""
        *stages, _total = stages_of(request, now_s)
        # Steps of an ensemble have numbered stages.
        durations = [(stage.name.rpartition(".")[2], stage.duration_s) for stage in stages]
        self._metrics.stages_sampled(protocol=self._protocol, model=model, stages=durations, requests=self._stands_for)
        is_busy = self._stands_for > (now_s - self._sampled_s) * _FEW_PER_S
        self._until_sample = self._stands_for = _SAMPLED if is_busy else 1
        self._sampled_s = now_s

    def _record(
        self,
        request: "MeasuredRequest",
        model: str,
        code: Code,
        error: BaseException | None,
        now_s: float,
        trace: TraceContext | None,
    ) -> RequestRecord:
        return RequestRecord(
            self._protocol,
            request.method,
            model,
            request.version,
            request.signature,
            code,
            request.started_s,
            request.received_s,
            now_s,
            time.time(),
            request.is_cached,
            request.times,
            read_request_id(request.request_id),
            client_trace_id(request.trace_headers),
            trace,
            error.message[:MOST_ERROR_CHARACTERS] if isinstance(error, ServingError) else "",
            caller_name(),
        )


class RequestSeries(NamedTuple):
    """The requests of one method for one signature of a version, found once. `record` counts a success."""

    method: str
    model: str
    version: int
    signature: str
    is_tracked: bool
    record: Callable[[float, str], None]


class Observed(NamedTuple):
    """A request of a series that someone observes: its end, its trace, and the watchers that want it."""

    now_s: float
    trace: TraceContext | None
    watchers: Sequence[RequestWatcher]


class MeasuredRequest:
    """One request in flight. Front-ends set its method, model and number of tf.Examples, and call `runs`."""

    __slots__ = (
        "_meter", "acquired", "deadline", "examples", "is_recalled", "is_reported", "is_tracked", "method",
        "model", "received_s", "request_id", "signature", "started_s", "timeout_s", "trace_headers", "trailers",
        "version", "wants_timing",
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
        # When the complete request had arrived: a client may send slowly.
        self.received_s = started_s
        # The timeout that a client of REST or of the Open Inference Protocol asked for.
        self.timeout_s = math.inf
        # The meter adds to it at the end of the request, also if it fails. Hosts send it as headers on REST and as
        # trailers on gRPC. None: the host cannot send any.
        self.trailers: Trailers | None = None
        # Whether the client wants the stages of the request among `trailers`.
        self.wants_timing = False
        # The headers of the same names, or None.
        self.trace_headers: TraceHeaders | None = None
        self.request_id: bytes | None = None
        # The version that runs the request. It may be released.
        self.acquired: AcquiredModel | AcquiredVersion | None = None
        # Whether the request counts towards the version's latency objective.
        self.is_tracked = False
        # Whether the response came from the cache, before its request was decoded.
        self.is_recalled = False
        # Whether `RequestMeter.answered` has reported the request.
        self.is_reported = False

    def __enter__(self) -> "MeasuredRequest":
        """Count the request, and return it."""
        self._meter.in_flight += 1
        return self

    def runs(self, acquired: AcquiredModel | AcquiredVersion, signature: str = "", priority: Priority = _HIGH) -> None:
        """Record the version and signature that the request resolved to.

        `signature` is empty for a request that runs several signatures. A high-priority request also counts towards the
        signature's latency objective, if it has one.
        """
        self.version = acquired.servable_id.version
        self.signature = signature
        self.acquired = acquired
        self.is_tracked = priority is _HIGH and acquired.has_objective(signature)

    def serves(self, acquired: AcquiredModel, series: RequestSeries, priority: Priority) -> None:
        """Record the same as `runs`, for a request of a series."""
        _, _, self.version, self.signature, is_tracked, _ = series
        self.is_tracked = is_tracked and priority is _HIGH
        self.acquired = acquired

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
        """Report the request, unless it is reported. An exception propagates."""
        if not self.is_reported:
            self._meter.finished(self, error)


def _code(error: BaseException, deadline: Deadline, now_s: float) -> Code:
    if isinstance(error, ServingError):
        return error.code
    if isinstance(error, asyncio.CancelledError):
        return Code.DEADLINE_EXCEEDED if deadline.expired(now_s + _TIMER_ERROR_S) else Code.CANCELLED
    return Code.INTERNAL
