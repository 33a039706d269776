"""Cases of the observation benchmark: a request through RequestMeter, with more and more parts, and metrics pages."""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benchmarks.codecs.requests import RESULT, SIGNATURE, ConstantModel, ConstantService
from benchmarks.observation.access_lines import discarded_lines
from benchmarks.observation.demands import priced_request, sample_us
from benchmarks.observation.pages import page_cpu_us
from tpuserve_formats.counted import counted
from tpuserve_server.core.terms.batch_run import BatchRun, Departure, TaskTimes
from tpuserve_server.core.terms.deadline import Deadline, SystemClock
from tpuserve_server.observe.metrics.live_measurements import version_totals
from tpuserve_server.observe.metrics.prometheus import PrometheusMetrics
from tpuserve_server.observe.options import AccessLogOptions, Requests
from tpuserve_server.observe.requests.access_log import AccessLog
from tpuserve_server.observe.requests.request_record import NO_OBSERVERS, Observers
from tpuserve_server.observe.requests.slow_requests import SlowRequests
from tpuserve_server.observe.requests.trace_context import TRACEPARENT, TRACESTATE, TraceHeaders
from tpuserve_server.observe.tracing.options import TracingOptions
from tpuserve_server.observe.tracing.request_tracing import RequestTracing, open_tracing
from tpuserve_server.protocols.grpc_methods import INFERENCE_NAMES
from tpuserve_server.protocols.request_meter import RequestMeter
from tpuserve_server.protocols.rpc import CallContext

_HEADERS: Final = {b"content-type": b"application/grpc", b"te": b"trailers"}
_NAMES: Final = TRACEPARENT.encode(), TRACESTATE.encode()
# So few that the queue of the export takes all that are traced.
_FEW: Final = 1_500
_PER_BATCH: Final = 8


@dataclass(frozen=True, slots=True)
class Case:
    """A measured part. `measure` returns the CPU of a request or a page in microseconds, and gets the receiver's URL.

    The cost is the difference to the case `baseline`.
    """

    name: str
    measure: Callable[[str], float]
    baseline: str = ""
    limit_us: float | None = None


def _nothing(_url: str) -> float:
    return _cpu_us(lambda: None, 100_000)


def _bare(_url: str) -> float:
    """Create the objects that a request has without any observation, too, and count requests as `_request` does."""
    requests = itertools.count()
    return _cpu_us(lambda: (next(requests) % _PER_BATCH, _context(0.0), _RanModel(SIGNATURE, RESULT)), 50_000)


def _without_tracing(_url: str) -> float:
    """Run the statements of tracing in a request of a server without it: the search for headers, two conditions."""
    tracing = NO_OBSERVERS.tracing
    traceparent, tracestate = _NAMES

    def act() -> None:
        headers = (
            None if (found := _HEADERS.get(traceparent)) is None else TraceHeaders(found, _HEADERS.get(tracestate))
        )
        trace = None if tracing is None else tracing.sample(headers, 0.0)
        if trace is not None:
            raise AssertionError

    return _cpu_us(act, 100_000)


def _metered(_url: str) -> float:
    return _cpu_us(_request(Observers((SlowRequests(INFERENCE_NAMES),)), PrometheusMetrics()), 50_000)


def _traced(ratio: float, requests: int) -> Callable[[str], float]:
    def measure(url: str) -> float:
        metrics = PrometheusMetrics()
        options = TracingOptions(url, sample_ratio=ratio, max_per_s=1e6)
        tracing = open_tracing(options, SystemClock(), metrics)
        assert tracing is not None
        return _exported_us(tracing, metrics, requests)

    return measure


def _exported_us(tracing: RequestTracing, metrics: PrometheusMetrics, requests: int) -> float:
    """Return the CPU of requests and of the export of all their spans."""
    tracing.start()
    cpu_us = _cpu_us(_request(Observers((SlowRequests(INFERENCE_NAMES),), tracing), metrics), requests, tracing.stop)
    outcomes = metrics.traced.all()
    if set(outcomes) != {"exported"}:
        raise RuntimeError(f"Not every trace was exported: {outcomes}")
    return cpu_us


def _logged(requests: Requests, ratio: float, count: int) -> Callable[[str], float]:
    def measure(_url: str) -> float:
        log = AccessLog(AccessLogOptions(requests, ratio))
        with discarded_lines() as handler:
            return _cpu_us(
                _request(Observers((SlowRequests(INFERENCE_NAMES), log)), PrometheusMetrics()), count, handler.flush
            )

    return measure


def _page(render: Callable[[PrometheusMetrics], object], signatures: int) -> Callable[[str], float]:
    return lambda _url: page_cpu_us(render, signatures)


def _sampled(versions: int) -> Callable[[str], float]:
    return lambda _url: sample_us(versions)


def _request(observers: Observers, metrics: PrometheusMetrics) -> Callable[[], None]:
    """Return a function that runs a request: its stamps, its meter, and its observers."""
    meter = RequestMeter(ConstantService(), metrics, SystemClock(), "grpc", observers)
    clock = SystemClock()
    batch = BatchRun(Departure.AT_ONCE, 0.0)
    requests = itertools.count()

    def act() -> None:
        nonlocal batch
        started_s = clock.monotonic_s()
        if next(requests) % _PER_BATCH == 0:
            batch = BatchRun(Departure.AT_ONCE, started_s)
            batch.requests = batch.rows = batch.bucket = _PER_BATCH
            batch.started_s = batch.begun_s = clock.monotonic_s()
            batch.ended_s = clock.monotonic_s()
        with meter.call("Predict", _context(started_s)) as measured:
            measured.model = RESULT.servable.name
            model = _RanModel(SIGNATURE, RESULT)
            measured.runs(model, SIGNATURE.name)
            model.ran(TaskTimes(RESULT.servable, started_s, (batch,), clock.monotonic_s()))

    return act


def _context(started_s: float) -> CallContext:
    return CallContext(Deadline.never(), {}, started_s=started_s, trailers=[])


class _RanModel(ConstantModel):
    """A model that has run."""

    def ran(self, times: TaskTimes) -> None:
        """Record when a request passed through a batcher."""
        self._times = (times,)
        self.is_recalled = False


def _cpu_us(act: Callable[[], object], count: int, finish: Callable[[], object] = lambda: None) -> float:
    """Return the CPU of this process for each call, in microseconds, including `finish`."""
    for _ in range(100):
        act()
    before_s = time.process_time()
    for _ in range(count):
        act()
    finish()
    return 1e6 * (time.process_time() - before_s) / count


METERED: Final = "metrics and stamps"
_NOTHING, _BARE = "nothing", "bare request"


CASES: Final = (
    Case(_NOTHING, _nothing),
    Case(_BARE, _bare),
    Case(METERED, _metered, _BARE, 3.0),
    Case("demand", lambda _url: _cpu_us(priced_request(), 100_000), _NOTHING, 0.5),
    Case("tracing off", _without_tracing, _NOTHING, 0.3),
    Case("tracing at 1 %", _traced(0.01, 100 * _FEW), METERED, 1.0),
    Case("tracing at 100 %", _traced(1.0, _FEW), METERED),
    Case("access log of errors", _logged("errors", 1.0, 50_000), METERED, 0.3),
    Case("access log of 1 %", _logged("all", 0.01, 50_000), METERED, 2.0),
    Case("access log of all", _logged("all", 1.0, _FEW), METERED),
    *(
        Case(f"demand sample of {counted(versions, 'version')}", _sampled(versions), _NOTHING)
        for versions in (1, 100, 1000)
    ),
    *(
        Case(f"{form} of {counted(signatures, 'signature')}", _page(render, signatures), _NOTHING)
        for signatures in (1, 100, 1000)
        for form, render in (
            ("text page", lambda metrics: b"".join(metrics.render()[0])),
            ("OpenMetrics page", lambda metrics: b"".join(metrics.render_open_metrics()[0])),
            ("console figures", version_totals),
        )
    ),
)
