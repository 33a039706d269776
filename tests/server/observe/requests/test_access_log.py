"""Tests of the access log."""

import logging
from typing import Any

import pytest

from tpuserve_server.core.terms.batch_run import BatchRun, Departure, TaskTimes
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.observe.options import AccessLogOptions
from tpuserve_server.observe.requests.access_log import MOST_ERRORS_PER_S, AccessLog, RateLimit, fields_of
from tpuserve_server.observe.requests.request_record import RequestRecord
from tpuserve_server.observe.requests.trace_context import TraceContext

TRACE = "0af7651916cd43dd8448eb211c80319c"


def make_record(**values: Any) -> RequestRecord:  # noqa: ANN401 - any field of a record
    run = BatchRun(Departure.FULL, ready_s=10.002)
    run.requests, run.rows, run.bucket = 3, 5, 8
    run.started_s, run.begun_s, run.ended_s = 10.002, 10.003, 10.007
    times = TaskTimes(ServableId("m", 7), 10.001, (run,), 10.008)
    ended = RequestRecord(
        "grpc", "Predict", "m", 7, "s", Code.OK, 10.0, 10.0, 10.0085, 1e9, is_cached=False, times=(times,)
    )
    return ended._replace(**values)


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.__dict__["fields"]() for record in caplog.records]


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_a_line_has_the_result_the_stages_and_the_ids(caplog: pytest.LogCaptureFixture) -> None:
    trace = TraceContext(TRACE, "b7ad6b7169203331")
    record = make_record(request_id="abc", client_trace_id="f" * 32, trace=trace)
    AccessLog(AccessLogOptions("all")).watch(record)
    assert caplog.messages == ["Predict OK"]
    [fields] = lines(caplog)
    number = record.times[0].runs[0].number
    assert {name: value for name, value in fields.items() if value is not None} == {
        "protocol": "grpc",
        "method": "Predict",
        "model": "m",
        "version": 7,
        "signature": "s",
        "code": "OK",
        "latency_ms": 8.5,
        "stages_ms": {"decode": 1.0, "queue": 1.0, "batch": 1.0, "execute": 4.0, "resume": 1.0, "encode": 0.5},
        "batch": number,
        "batch_requests": 3,
        "batch_rows": 8,
        "request_id": "abc",
        "trace_id": TRACE,
    }


def test_a_line_has_the_message_of_a_failed_request() -> None:
    assert fields_of(make_record(code=Code.NOT_FOUND, error="no\nmodel"))["error"] == "no\nmodel"
    assert fields_of(make_record())["error"] is None


@pytest.mark.parametrize(("client_trace_id", "trace_id"), [(TRACE, TRACE), ("", None)])
def test_a_request_without_span_has_the_trace_of_its_client(client_trace_id: str, trace_id: str | None) -> None:
    fields = fields_of(make_record(client_trace_id=client_trace_id, times=()))
    assert fields["trace_id"] == trace_id
    assert fields["request_id"] is None
    assert fields["batch"] is None


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        (AccessLogOptions("errors"), []),
        (AccessLogOptions("all", sample_ratio=0.25), [0.0, 0.2]),
        (AccessLogOptions("all"), [0.0, 0.2, 0.25, 0.9]),
        (AccessLogOptions("errors", sample_ratio=1.0), []),
    ],
)
def test_a_share_of_the_successful_requests_is_logged(options: AccessLogOptions, chosen: list[float]) -> None:
    numbers = [0.0, 0.2, 0.25, 0.9]
    log = AccessLog(options, iter(numbers).__next__)
    # A log of errors alone asks for no number.
    wanted = [log.wants(1.0, 1.0, Code.OK) for _ in numbers]
    assert [number for number, is_wanted in zip(numbers, wanted, strict=True) if is_wanted] == chosen


def test_errors_are_logged_up_to_a_rate_and_the_next_line_has_the_number_of_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = AccessLog(AccessLogOptions("errors"))
    assert sum(log.wants(0.1, 50.0, Code.RESOURCE_EXHAUSTED) for _ in range(1000)) == MOST_ERRORS_PER_S
    assert log.wants(0.1, 51.0, Code.CANCELLED)
    log.watch(make_record(code=Code.CANCELLED))
    log.watch(make_record(code=Code.CANCELLED))
    assert [line["omitted_errors"] for line in lines(caplog)] == [1000 - MOST_ERRORS_PER_S, None]
    assert caplog.messages == ["Predict CANCELLED"] * 2


def test_no_line_above_the_level_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    AccessLog(AccessLogOptions("all")).watch(make_record())
    assert caplog.records == []


def test_a_burst_of_one_second_is_admitted_at_first() -> None:
    limit = RateLimit(3.0)
    assert [limit.admits(5.0) for _ in range(5)] == [True, True, True, False, False]


def test_tokens_return_at_the_rate_and_never_exceed_one_second() -> None:
    limit = RateLimit(2.0)
    assert [limit.admits(now_s) for now_s in (0.0, 0.0, 0.0, 0.5, 0.5)] == [True, True, False, True, False]
    assert [limit.admits(100.0) for _ in range(3)] == [True, True, False]
