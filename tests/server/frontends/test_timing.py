"""Tests for the stages of a request and their header."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.administered_server import AdministeredServer
from tests.support.fakes import FakeClock, FakeMetrics, FakeService
from tpuserve_server.core.batching.batch_run import BatchRun, Departure
from tpuserve_server.core.deadline import Deadline
from tpuserve_server.core.errors import DeadlineExceeded, InvalidArgument
from tpuserve_server.core.task_times import TaskTimes
from tpuserve_server.core.types import ServableId
from tpuserve_server.frontends.request_meter import RequestMeter
from tpuserve_server.frontends.rpc import CallContext
from tpuserve_server.frontends.timing import MAX_VALUE_BYTES, Stage, server_timing, stages_of, wants_timing

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
    lag_s: float = 0.0
    is_cached: bool = False


def make_request(*times: TaskTimes, started_s: float = 9.0, received_s: float = 9.0) -> Timed:
    return Timed(times, started_s, received_s)


def test_the_stages_add_up_to_the_total() -> None:
    run = make_run()
    request = make_request(TaskTimes(ID, 10.0, (run,), 16.0), started_s=8.0, received_s=9.0)
    assert stages_of(request, 16.25) == [
        Stage("receive", 1.0),
        Stage("decode", 1.0),
        Stage("queue", 3.0, "3000.000 ms for the device"),
        Stage("batch", 0.5, f"batch {run.number} of 2 requests: 4 rows, 1 of padding"),
        Stage("execute", 2.0, "m version 7"),
        Stage("resume", 0.5),
        Stage("encode", 0.25),
        Stage("total", 8.25),
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
    assert undecoded == [Stage("decode", 0.5), Stage("total", 0.5)]
    queued = stages_of(make_request(TaskTimes(ID, 10.0, (), 12.0)), 12.0)
    assert queued[1] == Stage("queue", 2.0, "m version 7: ended before it ran")
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


async def test_each_step_of_an_ensemble_has_its_stages(tmp_path: Path) -> None:
    with AdministeredServer(tmp_path) as server:
        server.add_chain()
        image = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
        reply = await server.post("/v2/models/chain/infer", image, headers={"x-tpuserve-timing": "1"})
    names = re.findall(r"([a-z0-9.]+);dur=", reply.headers["server-timing"])
    steps = [f"step{step}.{name}" for step in (1, 2) for name in ("queue", "batch", "execute", "resume")]
    assert [name for name in names if name != "receive"] == ["decode", *steps, "encode", "total"]
    assert "b version 2" in reply.headers["server-timing"]


def test_a_header_is_bounded_and_keeps_the_total() -> None:
    steps = [Stage(f"step{step}.queue", 1.0, "x" * 100) for step in range(1024)]
    value = server_timing([*steps, Stage("total", 1024.0)])
    assert MAX_VALUE_BYTES - 150 < len(value) <= MAX_VALUE_BYTES
    assert value.startswith("step0.queue;dur=1000.000")
    assert value.endswith('", total;dur=1024000.000')
    assert server_timing([Stage("queue", 1.0, "x" * MAX_VALUE_BYTES), Stage("total", 1.0)]) == "total;dur=1000.000"


def test_a_failed_request_has_its_stages_too() -> None:
    clock, trailers = FakeClock(10.0), list[tuple[str, str]]()
    context = CallContext(Deadline.never(), {}, started_s=9.0, lag_s=0.5, trailers=trailers)

    def fail() -> None:
        with RequestMeter(FakeService(), FakeMetrics(), clock, "grpc").call("Predict", context):
            clock.now_s += 0.25
            raise DeadlineExceeded("late")

    with pytest.raises(DeadlineExceeded):
        fail()
    ((name, value),) = trailers
    assert name == "server-timing"
    assert value == (
        'host;dur=500.000;desc="between Envoy and the application", receive;dur=1000.000, decode;dur=250.000, '
        "total;dur=1750.000"
    )


@pytest.mark.parametrize(
    ("reason", "described"),
    [("", ""), ("a b", ';desc="a b"'), ('"\\', ';desc="\\"\\\\"'), ("é\n", ';desc="??"')],
)
def test_a_description_is_a_quoted_string_in_ascii(reason: str, described: str) -> None:
    assert server_timing([Stage("queue", 0.0015, reason)]) == f"queue;dur=1.500{described}"


def test_a_client_asks_with_one() -> None:
    assert [wants_timing(value) for value in (None, b"0", b"1")] == [False, False, True]


@pytest.mark.parametrize("value", [b"", b"yes", b"1, 1", b"\xff" * 100])
def test_other_values_are_refused(value: bytes) -> None:
    with pytest.raises(InvalidArgument, match=r"x-tpuserve-timing must be 0 or 1; was '.{0,32}"):
        wants_timing(value)
