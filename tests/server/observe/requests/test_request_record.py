"""Tests for the list of slow requests."""

from dataclasses import dataclass

import pytest

from tpuserve_server.core.terms.batch_run import BatchRun, Departure, TaskTimes
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.observe.requests.request_record import RequestRecord, Stage, stages_of
from tpuserve_server.observe.requests.slow_requests import WINDOW_S, SlowRequests

METHODS = frozenset({"Predict"})


def make_record(ended_s: float, latency_s: float, method: str = "Predict") -> RequestRecord:
    started_s = ended_s - latency_s
    return RequestRecord(
        "rest", method, "m", 1, "s", Code.OK, started_s, started_s, ended_s, 1e9, is_cached=False, times=()
    )


def offer(slow: SlowRequests, *records: RequestRecord) -> None:
    for record in records:
        if slow.wants(record.latency_s, record.ended_s, record.code):
            slow.watch(record)


def test_the_slowest_of_a_minute_are_kept() -> None:
    slow = SlowRequests(METHODS)
    offer(slow, *(make_record(100.0 + number / 100, float(1 + number * 7 % 1000)) for number in range(1000)))
    latencies_s = [round(record.latency_s) for record in slow.slowest(110.0)]
    assert latencies_s == list(range(1000, 980, -1))
    assert not slow.wants(980.0, 110.0, Code.OK)


def test_each_minute_begins_anew_and_the_list_covers_ten() -> None:
    slow = SlowRequests(METHODS)
    offer(slow, *(make_record(60.0 * minute + 1, 2.0 - minute / 100) for minute in range(1, 16)))
    now_s = 60.0 * 15 + 2
    kept = slow.slowest(now_s)
    assert [round(now_s - record.ended_s) // 60 for record in kept] == list(range(9, -1, -1))
    assert slow.slowest(now_s + WINDOW_S) == []


def test_a_burst_does_not_displace_the_slowest_of_the_minute_before() -> None:
    slow = SlowRequests(METHODS)
    offer(slow, make_record(10.0, 0.5), make_record(11.0, 0.4))
    offer(slow, *(make_record(100.0 + number / 1000, 2.0 + number / 10_000) for number in range(10_000)))
    listed = [record.latency_s for record in slow.slowest(111.0)]
    assert listed == sorted(listed, reverse=True)
    assert listed[:2] == [pytest.approx(2.9999), pytest.approx(2.9998)]
    assert listed[-1] == pytest.approx(0.5)
    assert len(listed) == 20
    assert [round(record.latency_s, 1) for record in slow.slowest(111.0, limit=1)] == [3.0]
    assert round(slow.slowest(111.0, limit=100)[-1].latency_s, 1) == 0.4


def test_only_requests_that_run_models_are_kept() -> None:
    slow = SlowRequests(METHODS)
    offer(slow, *(make_record(10.0, 5.0, "RepositoryIndex") for _ in range(50)), make_record(10.0, 0.1))
    assert [record.method for record in slow.slowest(11.0)] == ["Predict"]


def test_memory_is_bounded() -> None:
    slow = SlowRequests(METHODS)
    offer(slow, *(make_record(float(number), 1.0 + number) for number in range(10_000)))
    assert len(slow.slowest(10_000.0, limit=10_000)) <= 220


def test_requests_with_equal_latencies_are_kept() -> None:
    slow = SlowRequests(METHODS)
    offer(slow, *(make_record(10.0, 1.0) for _ in range(50)))
    assert len(slow.slowest(11.0)) == 20


ID = ServableId("m", 7)


def make_run(
    departure: Departure = Departure.AT_ONCE, ready_s: float = 10.0, *, rows: int = 3, bucket: int = 4
) -> BatchRun:
    """Return a run that starts 3 s after the request was queued at 10 s, and takes 2 s."""
    run = BatchRun(departure, ready_s)
    run.requests, run.rows, run.bucket = 2, rows, bucket
    run.started_s, run.begun_s, run.ended_s = 13.0, 13.5, 15.5
    return run


@dataclass
class Timed:
    """The times of a request."""

    times: tuple[TaskTimes, ...] = ()
    started_s: float = 9.0
    received_s: float = 9.0
    is_cached: bool = False


def make_request(*times: TaskTimes, started_s: float = 9.0, received_s: float = 9.0) -> Timed:
    return Timed(times, started_s, received_s)


def test_the_stages_add_up_to_the_total() -> None:
    run = make_run()
    request = make_request(TaskTimes(ID, 10.0, (run,), 16.0), started_s=8.0, received_s=9.0)
    assert stages_of(request, 16.25) == [
        Stage("receive", 8.0, 1.0),
        Stage("decode", 9.0, 1.0),
        Stage("queue", 10.0, 3.0, "3000.000 ms for the device"),
        Stage("batch", 13.0, 0.5, f"batch {run.number} of 2 requests: 4 rows, 1 of padding"),
        Stage("execute", 13.5, 2.0, "m version 7"),
        Stage("resume", 15.5, 0.5),
        Stage("encode", 16.0, 0.25),
        Stage("total", 8.0, 8.25),
    ]


@pytest.mark.parametrize(
    ("departure", "ready_s", "reason"),
    [
        (Departure.AT_ONCE, 10.0, "3000.000 ms for the device"),
        # The batch was ready before this request joined it.
        (Departure.AT_ONCE, 9.0, "3000.000 ms for the device"),
        # Requests are in the order of their deadlines, so the first one may have arrived later.
        (Departure.AT_ONCE, 12.0, "3000.000 ms for the device"),
        (Departure.FULL, 12.0, "2000.000 ms until the batch was full and 1000.000 ms for the device"),
        (Departure.TIMEOUT, 13.0, "3000.000 ms for more requests (batch_timeout_micros) and 0.000 ms for the device"),
    ],
)
def test_the_queue_says_what_the_request_waited_for(departure: Departure, ready_s: float, reason: str) -> None:
    request = make_request(TaskTimes(ID, 10.0, (make_run(departure, ready_s),), 16.0))
    assert [stage.reason for stage in stages_of(request, 16.0) if stage.name == "queue"] == [reason]


def test_a_request_without_padding_in_several_batches() -> None:
    first, last = make_run(rows=4), make_run(rows=4)
    last.ended_s = 17.0
    stages = {stage.name: stage for stage in stages_of(make_request(TaskTimes(ID, 10.0, (first, last), 17.5)), 18.0)}
    assert stages["batch"].reason == f"batch {last.number} of 2 requests: 4 rows; the last of 2 batches"
    assert stages["execute"].duration_s == 3.5
    assert stages["encode"].duration_s == 0.5


def test_a_request_that_ran_twice_names_its_steps() -> None:
    times = TaskTimes(ID, 10.0, (make_run(),), 15.5), TaskTimes(ServableId("n", 1), 11.0, (make_run(),), 16.0)
    names = [stage.name for stage in stages_of(make_request(*times), 17.0)]
    steps = [f"step{step}.{name}" for step in (1, 2) for name in ("queue", "batch", "execute", "resume")]
    assert names == ["decode", *steps, "encode", "total"]


def test_a_request_that_failed_ends_where_it_failed() -> None:
    undecoded = stages_of(make_request(), 9.5)
    assert undecoded == [Stage("decode", 9.0, 0.5), Stage("total", 9.0, 0.5)]
    queued = stages_of(make_request(TaskTimes(ID, 10.0, (), 12.0)), 12.0)
    assert queued[1] == Stage("queue", 10.0, 2.0, "m version 7: ended before it ran")
    run = make_run()
    run.ended_s = 0.0
    running = {stage.name: stage for stage in stages_of(make_request(TaskTimes(ID, 10.0, (run,), 14.0)), 14.0)}
    assert running["execute"].duration_s == 0.5


@pytest.mark.parametrize(
    ("resumed_s", "names"),
    [(12.0, ["decode", "queue", "encode"]), (14.0, ["decode", "queue", "batch", "execute", "resume", "encode"])],
)
def test_what_a_device_does_after_the_end_of_a_request_does_not_count(resumed_s: float, names: list[str]) -> None:
    *stages, total = stages_of(make_request(TaskTimes(ID, 10.0, (make_run(),), resumed_s)), 16.0)
    assert [stage.name for stage in stages] == names
    assert all(stage.duration_s >= 0 for stage in stages)
    assert sum(stage.duration_s for stage in stages) == total.duration_s == 7.0
