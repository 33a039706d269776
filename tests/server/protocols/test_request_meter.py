"""Tests for the report of each request."""

import asyncio
import contextlib
import math

import pytest

from tests.support.fakes import FakeClock, FakeMetrics, FakeService, Finished
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import (
    Code,
    DeadlineExceeded,
    Fault,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    ServingError,
    TooLarge,
    TooLate,
    Unavailable,
)
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import ModelSpec
from tpuserve_server.protocols.request_meter import RequestMeter


def fail(metrics: FakeMetrics, model: str, error: BaseException, service: FakeService | None = None) -> None:
    with RequestMeter(service or FakeService(), metrics, FakeClock(), "rest").request("Predict") as measured:
        measured.model = model
        raise error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFound("no"), Code.NOT_FOUND),
        (Unavailable("no"), Code.UNAVAILABLE),
        (asyncio.CancelledError(), Code.CANCELLED),
        (ZeroDivisionError(), Code.INTERNAL),
    ],
)
def test_an_error_goes_on_and_is_counted_under_its_code(error: BaseException, code: Code) -> None:
    metrics = FakeMetrics()
    with pytest.raises(type(error)):
        fail(metrics, "m", error)
    assert metrics.finished == [Finished("m", "Predict", "rest", code, 0.0)]


@pytest.mark.parametrize(
    ("error", "at_s", "code"),
    [
        (asyncio.CancelledError(), 4.9, Code.CANCELLED),
        # uvloop's timers may fire a millisecond early.
        (asyncio.CancelledError(), 4.999, Code.DEADLINE_EXCEEDED),
        (asyncio.CancelledError(), 5.0, Code.DEADLINE_EXCEEDED),
        (ZeroDivisionError(), 6.0, Code.INTERNAL),
        (Unavailable("no"), 6.0, Code.UNAVAILABLE),
    ],
)
def test_a_cancellation_after_the_deadline_is_the_deadlines(error: BaseException, at_s: float, code: Code) -> None:
    metrics, clock = FakeMetrics(), FakeClock(now_s=1)

    def fail_late() -> None:
        with RequestMeter(FakeService(), metrics, clock, "grpc").request("Predict", Deadline(5.0)):
            clock.now_s = at_s
            raise error

    with pytest.raises(type(error)):
        fail_late()
    assert metrics.finished == [Finished("", "Predict", "grpc", code, at_s - 1)]


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (InvalidArgument("wrong"), "client"),
        (asyncio.CancelledError(), "client"),
        (Internal("broken"), "server"),
        (ZeroDivisionError(), "server"),
        (Unavailable("full"), "server"),
        (ResourceExhausted("no memory"), "server"),
        (TooLarge("over the limit"), "client"),
        (NotFound("no such version"), "client"),
    ],
)
def test_code_decides_whose_fault_an_error_is(error: BaseException, fault: Fault) -> None:
    metrics = FakeMetrics()
    with pytest.raises(type(error)):
        fail(metrics, "m", error)
    assert [found for _, found in metrics.faults] == [fault]


def test_configured_model_without_a_version_is_the_servers_fault() -> None:
    metrics, service = FakeMetrics(), FakeService()
    service.statuses = []
    for model in ("m", "not configured"):
        with pytest.raises(NotFound):
            fail(metrics, model, NotFound("no"), service)
    assert metrics.faults == [(Code.NOT_FOUND, "server"), (Code.NOT_FOUND, "client")]


@pytest.mark.parametrize("error", [DeadlineExceeded("expired"), TooLate("late", retry_after_s=1.0)])
@pytest.mark.parametrize(
    ("timeout_s", "read_after_s", "fault"),
    [(0.09, 0.0, "client"), (0.05, 0.0, "client"), (0.2, 0.0, "server"), (0.2, 0.15, "server")],
)
def test_timeout_below_the_fastest_run_is_the_clients_fault(
    error: ServingError, timeout_s: float, read_after_s: float, fault: Fault
) -> None:
    metrics, service, clock = FakeMetrics(), FakeService(), FakeClock()
    service.fastest_s = 0.1
    meter = RequestMeter(service, metrics, clock, "grpc")

    def run_late(deadline: Deadline, requested_s: float) -> None:
        with meter.request("Predict", deadline) as request:
            # The server was slow to read the request.
            clock.now_s += read_after_s
            request.timeout_s = requested_s
            request.runs(service.acquire(ModelSpec("m")), "serving_default")
            raise error

    for deadline, requested_s in ((Deadline(clock.now_s + timeout_s), math.inf), (Deadline.never(), timeout_s)):
        with pytest.raises(type(error)):
            run_late(deadline, requested_s)
    assert metrics.faults[0] == (error.code, fault)
    assert metrics.faults[1] == (error.code, fault)


def test_success_is_no_ones_fault() -> None:
    metrics = FakeMetrics()
    with RequestMeter(FakeService(), metrics, FakeClock(), "grpc").request("Predict"):
        pass
    assert metrics.faults == []


def test_latency_is_the_clocks() -> None:
    metrics, clock = FakeMetrics(), FakeClock()
    with RequestMeter(FakeService(), metrics, clock, "grpc").request("Unknown") as measured:
        measured.method = "Predict"
        measured.model = "m"
        clock.now_s += 0.25
    assert metrics.finished == [Finished("m", "Predict", "grpc", Code.OK, 0.25)]


def test_made_up_names_never_become_labels() -> None:
    metrics = FakeMetrics()
    with pytest.raises(NotFound):
        fail(metrics, "made-up", NotFound("no"))
    assert metrics.finished[0].model == ""


def test_what_a_request_runs_on_is_reported() -> None:
    metrics = FakeMetrics()
    service = FakeService()
    with RequestMeter(service, metrics, FakeClock(), "grpc").request("Predict") as measured:
        measured.model = "m"
        measured.runs(service.acquire(ModelSpec("m")), "serving_default")
        measured.examples = 3
    assert (metrics.finished[0].version, metrics.finished[0].signature) == (7, "serving_default")
    assert metrics.examples == [("m", 3)]


@pytest.mark.parametrize(
    ("priority", "fault", "told"),
    [
        (Priority.HIGH, None, [("serving_default", 0.2)]),
        (Priority.LOW, None, []),
        (Priority.HIGH, Unavailable("full"), []),
    ],
)
def test_an_answer_that_was_promised_in_time_is_told_of_from_when_the_request_had_come(
    priority: Priority, fault: ServingError | None, told: list[tuple[str, float]]
) -> None:
    service, clock = FakeService(), FakeClock()
    service.promised = True
    with (
        contextlib.suppress(Unavailable),
        RequestMeter(service, FakeMetrics(), clock, "rest").request("Predict") as measured,
        service.acquire(ModelSpec("m")) as model,
    ):
        # The body took that long.
        clock.now_s += 3.0
        measured.received_s = clock.now_s
        measured.runs(model, "serving_default", priority)
        clock.now_s += 0.2
        if fault is not None:
            raise fault
    assert [(name, round(latency_s, 6)) for name, latency_s in service.answers] == told


def test_requests_count_as_in_flight_until_they_end() -> None:
    metrics = FakeMetrics()
    meter = RequestMeter(FakeService(), metrics, FakeClock(), "rest")
    in_flight = metrics.in_flight["rest"]
    with meter.request("Predict"), contextlib.suppress(NotFound):
        assert in_flight() == 1
        with meter.request("Predict"):
            assert in_flight() == 2
            raise NotFound("no")
    assert in_flight() == 0


def answer(meter: RequestMeter, clock: FakeClock, took_s: float) -> None:
    with meter.request("Predict") as measured:
        measured.model = "m"
        clock.now_s += took_s


def test_the_stages_of_every_request_count_at_a_low_rate() -> None:
    metrics, clock = FakeMetrics(), FakeClock()
    meter = RequestMeter(FakeService(), metrics, clock, "rest")
    for _ in range(3):
        answer(meter, clock, 0.5)
    # These requests never reached a batcher.
    assert metrics.stages == [({"decode": 0.5}, 1)] * 3


def test_the_stages_of_one_request_count_for_many_at_a_high_rate() -> None:
    metrics, clock = FakeMetrics(), FakeClock()
    meter = RequestMeter(FakeService(), metrics, clock, "rest")
    for _ in range(1 + 3 * 127):
        answer(meter, clock, 0.001)
    assert [requests for _, requests in metrics.stages] == [1, 127, 127, 127]
    clock.now_s += 60.0
    for _ in range(129):
        answer(meter, clock, 0.5)
    # The rate has fallen: after the next sample, every request counts.
    assert [requests for _, requests in metrics.stages][4:] == [127, 1, 1]
