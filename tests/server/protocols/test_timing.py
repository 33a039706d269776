"""Tests for the headers of timing."""

import re
from pathlib import Path

import pytest

from tests.support.administered_server import AdministeredServer
from tests.support.fakes import FakeClock, FakeMetrics, FakeService
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import DeadlineExceeded, InvalidArgument
from tpuserve_server.observe.requests.request_record import Stage
from tpuserve_server.protocols.request_meter import RequestMeter
from tpuserve_server.protocols.rpc import CallContext
from tpuserve_server.protocols.timing import MAX_VALUE_BYTES, server_timing, wants_timing


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
    steps = [Stage(f"step{step}.queue", 0.0, 1.0, "x" * 100) for step in range(1024)]
    value = server_timing([*steps, Stage("total", 0.0, 1024.0)])
    assert MAX_VALUE_BYTES - 150 < len(value) <= MAX_VALUE_BYTES
    assert value.startswith("step0.queue;dur=1000.000")
    assert value.endswith('", total;dur=1024000.000')
    assert (
        server_timing([Stage("queue", 0.0, 1.0, "x" * MAX_VALUE_BYTES), Stage("total", 0.0, 1.0)])
        == "total;dur=1000.000"
    )


def test_a_failed_request_has_its_stages_too() -> None:
    clock, trailers = FakeClock(10.0), list[tuple[str, str]]()
    context = CallContext(Deadline.never(), {}, started_s=9.0, trailers=trailers, wants_timing=True)

    def fail() -> None:
        with RequestMeter(FakeService(), FakeMetrics(), clock, "grpc").call("Predict", context):
            clock.now_s += 0.25
            raise DeadlineExceeded("late")

    with pytest.raises(DeadlineExceeded):
        fail()
    ((name, value),) = trailers
    assert name == "server-timing"
    assert value == "receive;dur=1000.000, decode;dur=250.000, total;dur=1250.000"


@pytest.mark.parametrize(
    ("reason", "described"),
    [("", ""), ("a b", ';desc="a b"'), ('"\\', ';desc="\\"\\\\"'), ("é\n", ';desc="??"')],
)
def test_a_description_is_a_quoted_string_in_ascii(reason: str, described: str) -> None:
    assert server_timing([Stage("queue", 0.0, 0.0015, reason)]) == f"queue;dur=1.500{described}"


def test_a_client_asks_with_one() -> None:
    assert [wants_timing(value) for value in (None, b"0", b"1")] == [False, False, True]


@pytest.mark.parametrize("value", [b"", b"yes", b"1, 1", b"\xff" * 100])
def test_other_values_are_refused(value: bytes) -> None:
    with pytest.raises(InvalidArgument, match=r"x-tpuserve-timing must be 0 or 1; was '.{0,32}"):
        wants_timing(value)
