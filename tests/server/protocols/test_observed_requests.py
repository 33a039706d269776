"""Tests for the requests that observers see."""

import contextlib
from dataclasses import dataclass, field

import pytest

from tests.support.fakes import FakeClock, FakeMetrics, FakeService
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import Code, NotFound
from tpuserve_server.core.terms.types import ModelSpec
from tpuserve_server.observe.requests.request_record import Observers, RequestRecord
from tpuserve_server.observe.requests.trace_context import TraceContext, TraceHeaders
from tpuserve_server.protocols.request_meter import RequestMeter
from tpuserve_server.protocols.rpc import CallContext

HEADERS = TraceHeaders(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", b"a=1")
TRACE = TraceContext("0af7651916cd43dd8448eb211c80319c", "00f067aa0ba902b7", "b7ad6b7169203331")


@dataclass
class Watcher:
    """Wants requests of at least `least_s`."""

    least_s: float
    records: list[RequestRecord] = field(default_factory=list)

    def wants(self, latency_s: float, now_s: float, code: Code) -> bool:
        return latency_s >= self.least_s

    def watch(self, record: RequestRecord) -> None:
        self.records.append(record)


@dataclass
class Tracing:
    """Traces requests with trace headers."""

    records: list[RequestRecord] = field(default_factory=list)

    def sample(self, headers: TraceHeaders | None, latency_s: float) -> TraceContext | None:
        return None if headers is None else TRACE

    def export(self, record: RequestRecord) -> None:
        self.records.append(record)


def call(
    observers: Observers,
    trailers: list[tuple[str, str]],
    headers: TraceHeaders | None,
    *,
    error: Exception | None = None,
    request_id: bytes = b"r1",
) -> None:
    clock = FakeClock(10.0)
    context = CallContext(
        Deadline.never(), {}, started_s=9.0, trailers=trailers, trace_headers=headers, request_id=request_id
    )
    with RequestMeter(FakeService(), FakeMetrics(), clock, "grpc", observers).call("Predict", context) as measured:
        measured.model = "m"
        clock.now_s = 12.0
        if error is not None:
            raise error


def test_a_watcher_gets_the_requests_that_it_wants_with_all_their_times() -> None:
    fast, slow = Watcher(3.0), Watcher(3.1)
    call(Observers((fast, slow)), [], HEADERS)
    assert slow.records == []
    (record,) = fast.records
    assert (record.protocol, record.method, record.model, record.code) == ("grpc", "Predict", "m", Code.OK)
    assert (record.started_s, record.received_s, record.ended_s) == (9.0, 10.0, 12.0)
    assert record.latency_s == 3.0
    assert (record.request_id, record.client_trace_id, record.trace) == ("r1", TRACE.trace_id, None)
    assert [stage.name for stage in record.stages] == ["receive", "decode", "total"]


def test_a_record_keeps_no_long_or_invalid_headers() -> None:
    watcher = Watcher(0.0)
    call(Observers((watcher,)), [], TraceHeaders(b"0" * 10_000, b"a=" * 10_000), request_id=b"x" * 129)
    [record] = watcher.records
    assert (record.request_id, record.client_trace_id) == ("", "")


def test_a_failed_request_is_seen_with_its_code_and_without_an_unknown_model() -> None:
    watcher = Watcher(0.0)
    with pytest.raises(NotFound):
        call(Observers((watcher,)), [], None, error=NotFound("no"))
    assert [(record.code, record.model, record.error) for record in watcher.records] == [(Code.NOT_FOUND, "m", "no")]


@pytest.mark.parametrize(("error", "kept"), [(NotFound("x" * 10_000), "x" * 200), (ZeroDivisionError("secret"), "")])
def test_a_record_keeps_the_start_of_the_clients_message_alone(error: Exception, kept: str) -> None:
    watcher = Watcher(0.0)
    with pytest.raises(type(error)):
        call(Observers((watcher,)), [], None, error=error)
    assert [record.error for record in watcher.records] == [kept]


def test_a_traced_request_is_exported_and_tells_its_client() -> None:
    watcher, tracing, trailers = Watcher(0.0), Tracing(), list[tuple[str, str]]()
    call(Observers((watcher,), tracing), trailers, HEADERS)
    assert trailers == [("traceresponse", "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01")]
    assert [record.trace for record in tracing.records] == [TRACE]
    # A watcher sees the same identifiers.
    assert [record.trace for record in watcher.records] == [TRACE]


def test_a_request_that_is_not_sampled_is_not_exported() -> None:
    tracing, trailers = Tracing(), list[tuple[str, str]]()
    call(Observers((), tracing), trailers, None)
    assert (tracing.records, trailers) == ([], [])


@pytest.mark.parametrize("started_s", [9.0, 0.0], ids=["a host", "no host"])
@pytest.mark.parametrize("is_promised", [False, True])
@pytest.mark.parametrize("is_traced", [False, True])
@pytest.mark.parametrize("wants_timing", [False, True])
@pytest.mark.parametrize("error", [None, NotFound("no")])
def test_a_request_of_a_series_is_reported_like_any_other(
    started_s: float, is_promised: bool, is_traced: bool, wants_timing: bool, error: Exception | None
) -> None:
    def report(*, in_series: bool) -> tuple[object, ...]:
        clock, service, metrics, tracing = FakeClock(10.0), FakeService(), FakeMetrics(), Tracing()
        trailers: list[tuple[str, str]] = []
        service.promised = is_promised
        watcher = Watcher(0.0)
        meter = RequestMeter(service, metrics, clock, "grpc", Observers((watcher,), tracing))
        headers = HEADERS if is_traced else None
        context = CallContext(
            Deadline.never(), {}, None, started_s=started_s, trailers=trailers, wants_timing=wants_timing,
            trace_headers=headers, request_id=b"r1",
        )  # fmt: skip
        model = service.acquire(ModelSpec("m"))
        if in_series:
            series = meter.series("Predict", "m", model)
            meter.in_flight += 1
            clock.now_s = 12.0
            if error is not None:
                meter.finished(meter.measured(series, context, 10.0, model), error)
            elif seen := meter.answered(series, started_s or 10.0, headers, wants_timing=wants_timing):
                meter.observe(meter.measured(series, context, 10.0, model), seen)
        else:
            with contextlib.suppress(NotFound), meter.call("Predict", context) as measured:
                measured.model = "m"
                measured.runs(model, model.signature.name)
                clock.now_s = 12.0
                if error is not None:
                    raise error
        records = [record._replace(ended_unix_s=0.0) for record in (*watcher.records, *tracing.records)]
        finished = [(each, each.version, each.signature) for each in metrics.finished]
        return records, finished, metrics.stages, trailers, service.answers, meter.in_flight

    assert report(in_series=True) == report(in_series=False)


def test_requests_that_nobody_observes_are_sampled() -> None:
    clock, metrics, service = FakeClock(10.0), FakeMetrics(), FakeService()
    meter = RequestMeter(service, metrics, clock, "grpc")
    model = service.acquire(ModelSpec("m"))
    series = meter.series("Predict", "m", model)
    for _ in range(300):
        meter.in_flight += 1
        if seen := meter.answered(series, clock.now_s, None, wants_timing=False):
            meter.observe(meter.measured(series, CallContext(Deadline.never(), {}), clock.now_s, model), seen)
    # The first two show that requests are frequent.
    assert [requests for _, requests in metrics.stages] == [1, 127, 127]
    assert len(metrics.finished) == 300
