"""Tests for the requests that observers see."""

from dataclasses import dataclass, field

import pytest

from tests.support.fakes import FakeClock, FakeMetrics, FakeService
from tpuserve_server.core.deadline import Deadline
from tpuserve_server.core.errors import Code, NotFound
from tpuserve_server.frontends.request_meter import RequestMeter
from tpuserve_server.frontends.rpc import CallContext
from tpuserve_server.telemetry.observers import Observers
from tpuserve_server.telemetry.request_record import RequestRecord
from tpuserve_server.telemetry.trace_context import TraceContext, TraceHeaders

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
        Deadline.never(), {}, started_s=9.0, lag_s=0.5, trailers=trailers, trace_headers=headers, request_id=request_id
    )
    with RequestMeter(FakeService(), FakeMetrics(), clock, "grpc", observers).call("Predict", context) as measured:
        measured.model = "m"
        clock.now_s = 12.0
        if error is not None:
            raise error


def test_a_watcher_gets_the_requests_that_it_wants_with_all_their_times() -> None:
    fast, slow = Watcher(3.5), Watcher(3.6)
    call(Observers((fast, slow)), [], HEADERS)
    assert slow.records == []
    (record,) = fast.records
    assert (record.protocol, record.method, record.model, record.code) == ("grpc", "Predict", "m", Code.OK)
    assert (record.lag_s, record.started_s, record.received_s, record.ended_s) == (0.5, 9.0, 10.0, 12.0)
    assert record.latency_s == 3.5
    assert (record.request_id, record.client_trace_id, record.trace) == ("r1", TRACE.trace_id, None)
    assert [stage.name for stage in record.stages] == ["host", "receive", "decode", "total"]


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
