"""Tests for predictions in parts: both clients over both protocols, and the bound on requests in flight."""

import asyncio
import threading
from contextvars import ContextVar
from typing import Any

import numpy as np
import pytest

from tests.clients.clients_under_test import Clock
from tests.clients.model_server import FLOAT, INT64, Arrays, Failure, ModelServer, run_model
from tpuserve_client import Client, DeadlineExceeded, FailedPrecondition, InvalidArgument, NotFound, Prediction
from tpuserve_client.errors import Code
from tpuserve_client.model import ModelSpec
from tpuserve_client.split_predict import CONCURRENT_PARTS, Part, first_then_in_tasks, first_then_in_threads

X = np.arange(40, dtype=np.float32).reshape(10, 4)
TRACE: ContextVar[str] = ContextVar("TRACE")


def predicts(server: ModelServer) -> int:
    return server.methods().count("Predict")


@pytest.mark.parametrize("max_batch_size", [1, 3, 5, 10, 1000])
def test_parts_make_the_prediction_of_the_whole(client: Client, server: ModelServer, max_batch_size: int) -> None:
    prediction = client.predict("affine", {"x": X}, max_batch_size=max_batch_size)
    np.testing.assert_array_equal(prediction["y"], X * 2 + 1)
    assert (str(prediction["y"].dtype), str(prediction["best"].dtype)) == ("float32", "int64")
    assert prediction["best"].tolist() == [3] * 10
    assert (prediction.model, prediction.version, prediction.signature_name) == ("affine", 7, "serving_default")
    assert predicts(server) == -(-10 // max_batch_size)


def test_parts_have_at_most_the_given_rows(client: Client, server: ModelServer) -> None:
    rows: list[int] = []

    def run(model: str, inputs: Arrays) -> Arrays:
        rows.append(len(inputs["x"]))
        return run_model(model, inputs)

    server.run = run
    client.predict("affine", X.tolist(), max_batch_size=4)
    assert sorted(rows) == [2, 4, 4]


def test_all_parts_go_to_the_version_of_the_first(client: Client, server: ModelServer) -> None:
    def run(model: str, inputs: Arrays) -> Arrays:
        server.version = 8  # a new version becomes the latest one during the call
        return run_model(model, inputs)

    server.run = run
    client.predict("affine", {"x": X}, max_batch_size=3, label="stable")
    assert {served.version for served in server.served if served.method == "Predict"} == {7}
    assert server.served[0].label == "stable"


def test_given_version_is_kept(client: Client, server: ModelServer) -> None:
    client.predict("affine", {"x": X}, max_batch_size=3, version=5)
    assert {served.version for served in server.served if served.method == "Predict"} == {5}


def test_options_reach_every_part(client: Client, server: ModelServer) -> None:
    prediction = client.predict(
        "affine", X, max_batch_size=3, output_filter="best", priority="low", signature_name="serving_default"
    )
    assert set(prediction) == {"best"}
    parts = [served for served in server.served if served.method == "Predict"]
    assert len(parts) == 4
    assert {(served.priority, served.signature) for served in parts} == {("low", "serving_default")}


def test_error_of_the_first_part_ends_the_call(client: Client, server: ModelServer) -> None:
    client.metadata("affine")
    server.failures.extend([Failure(Code.NOT_FOUND, "gone")])
    with pytest.raises(NotFound, match="gone"):
        client.predict("affine", {"x": X}, max_batch_size=3)
    assert predicts(server) == 0


def test_error_of_a_later_part_is_raised_as_it_is(client: Client, server: ModelServer) -> None:
    def run(model: str, inputs: Arrays) -> Arrays:
        if predicts(server) > 2:
            server.failures.append(Failure(Code.INVALID_ARGUMENT, "a later part"))
        return run_model(model, inputs)

    server.run = run
    with pytest.raises(InvalidArgument, match="a later part"):
        client.predict("affine", {"x": X}, max_batch_size=1)


def test_unavailable_part_is_retried(client: Client, server: ModelServer) -> None:
    client.predict("affine", {"x": X}, version=7)  # the metadata is cached
    server.failures.extend([Failure(Code.UNAVAILABLE)] * 2)
    assert len(client.predict("affine", {"x": X}, max_batch_size=5)["y"]) == 10


def test_one_deadline_covers_all_parts(timed_client: Client, server: ModelServer, clock: Clock) -> None:
    def run(model: str, inputs: Arrays) -> Arrays:
        clock.now_s += 4.0
        return run_model(model, inputs)

    server.run = run
    with pytest.raises(DeadlineExceeded):
        timed_client.predict("affine", {"x": X}, max_batch_size=1, timeout_s=10.0)
    assert predicts(server) < 10


@pytest.mark.parametrize("value", [0, -1, 1.5, "3", True])
def test_size_that_is_none_is_refused(client: Client, server: ModelServer, value: Any) -> None:  # noqa: ANN401 - wrong types
    with pytest.raises(InvalidArgument, match="max_batch_size must be a positive integer"):
        client.predict("affine", {"x": X}, max_batch_size=value)
    assert server.served == []


def test_inputs_without_common_rows_are_refused(client: Client, server: ModelServer) -> None:
    with pytest.raises(InvalidArgument, match="input a has no rows"):
        client.predict("pair", {"a": np.int64(3), "b": ["x", "y"]}, max_batch_size=1)
    server.signatures["two"] = ({"a": (FLOAT, [-1]), "b": (FLOAT, [-1])}, {"y": (FLOAT, [-1])})
    with pytest.raises(InvalidArgument, match="equally many rows"):
        client.predict("two", {"a": [1, 2], "b": [1]}, max_batch_size=1)
    assert predicts(server) == 0


def test_output_without_rows_is_refused_by_signature_and_by_shape(client: Client, server: ModelServer) -> None:
    inputs, _ = server.signatures["affine"]
    server.run = lambda _, arrays: {"y": arrays["x"], "total": arrays["x"].sum(axis=0)}
    server.signatures["sum"] = (inputs, {"y": (FLOAT, [-1, 4]), "total": (FLOAT, [4])})
    with pytest.raises(InvalidArgument, match="has no dimension for rows"):
        client.predict("sum", {"x": X}, max_batch_size=5)
    assert predicts(server) == 0
    assert len(client.predict("sum", {"x": X}, max_batch_size=5, output_filter=["y"])["y"]) == 10
    server.signatures["sum"] = (inputs, {"y": (FLOAT, [-1, 4]), "total": (FLOAT, [-1])})
    with pytest.raises(InvalidArgument, match=r"output total has shape \[4\] for 5 rows"):
        client.predict("sum", {"x": X}, max_batch_size=5)


def test_wrong_input_is_refused_as_without_parts(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="Input x"):
        client.predict("affine", {"x": [["a"]]}, max_batch_size=1)
    with pytest.raises(InvalidArgument, match="no signature"):
        client.predict("affine", {"x": X}, max_batch_size=1, signature_name="other")


@pytest.mark.parametrize("protocol", ["grpc"], indirect=True)
def test_zero_rows_are_one_request(client: Client, server: ModelServer) -> None:
    server.signatures["mirror"] = ({"x": (INT64, [-1, 4])}, {"x": (INT64, [-1, 4])})
    assert client.predict("mirror", {"x": np.zeros((0, 4), np.int64)}, max_batch_size=5)["x"].shape == (0, 4)
    assert predicts(server) == 1


def test_unknown_version_is_refused(client: Client, server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from tpuserve_client.grpc_wire import GrpcWire
    from tpuserve_client.rest_wire import RestWire

    for wire in (GrpcWire, RestWire):
        read = wire.read_metadata
        monkeypatch.setattr(wire, "read_metadata", lambda *args, read=read: replace(read(*args), version=None))
    with pytest.raises(FailedPrecondition, match="Set the version"):
        client.predict("affine", {"x": X}, max_batch_size=5)
    assert len(client.predict("affine", {"x": X}, max_batch_size=10)["y"]) == 10


# The two ways to execute parts.


PARTS = [Part(ModelSpec("m"), {"x": np.array([number])}, 1) for number in range(20)]


def prediction(part: Part) -> Prediction:
    return Prediction(part.inputs, "m", 7, "s")


class InFlight:
    """Counts calls in flight, and holds the first ones after the first part until as many run as may."""

    def __init__(self) -> None:
        self.now = self.most = self.begun = 0
        self.lock = threading.Lock()
        self.full = threading.Barrier(CONCURRENT_PARTS)

    def predict(self, part: Part) -> Prediction:
        with self.lock:
            self.now += 1
            self.begun += 1
            self.most = max(self.most, self.now)
            is_held = 1 < self.begun <= 1 + CONCURRENT_PARTS
        if is_held:
            self.full.wait(60)
        with self.lock:
            self.now -= 1
        return prediction(part)


def test_threads_run_a_few_parts_at_a_time_in_the_callers_context() -> None:
    flight = InFlight()
    TRACE.set("trace")
    seen: list[str] = []

    def predict(part: Part) -> Prediction:
        seen.append(TRACE.get("none"))
        return flight.predict(part)

    found = first_then_in_threads(predict, PARTS)
    assert [each["x"].item() for each in found] == list(range(20))
    assert flight.most == CONCURRENT_PARTS
    assert seen == ["trace"] * 20


async def test_tasks_run_a_few_parts_at_a_time() -> None:
    now = most = 0
    full = asyncio.Event()

    async def predict(part: Part) -> Prediction:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if now == CONCURRENT_PARTS:
            full.set()
        if part is not PARTS[0]:
            await full.wait()
        now -= 1
        return prediction(part)

    found = await first_then_in_tasks(predict, PARTS)
    assert [each["x"].item() for each in found] == list(range(20))
    assert most == CONCURRENT_PARTS


def test_no_thread_begins_a_part_after_an_error() -> None:
    begun: list[int] = []

    def predict(part: Part) -> Prediction:
        begun.append(part.inputs["x"].item())
        if len(begun) > 1:
            raise NotFound("gone")
        return prediction(part)

    with pytest.raises(NotFound, match="gone"):
        first_then_in_threads(predict, PARTS * 50)
    assert len(begun) <= 1 + CONCURRENT_PARTS


class Waiting:
    """Predicts the first part, and holds the others until they are cancelled. One of them may fail."""

    def __init__(self, failing: int | None = None) -> None:
        self.failing = failing
        self.held = 0
        self.cancelled = 0
        self.all_held = asyncio.Event()

    async def predict(self, part: Part) -> Prediction:
        number = part.inputs["x"].item()
        if number == 0:
            return prediction(part)
        if number == self.failing:
            raise NotFound("gone")
        self.held += 1
        if self.held == CONCURRENT_PARTS:
            self.all_held.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        raise AssertionError


async def test_an_error_cancels_the_other_tasks() -> None:
    waiting = Waiting(failing=CONCURRENT_PARTS)
    with pytest.raises(NotFound, match="gone"):
        await first_then_in_tasks(waiting.predict, PARTS)
    assert waiting.cancelled == waiting.held == CONCURRENT_PARTS - 1


async def test_a_cancelled_call_cancels_its_tasks() -> None:
    waiting = Waiting()
    call = asyncio.create_task(first_then_in_tasks(waiting.predict, PARTS))
    await waiting.all_held.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert waiting.cancelled == waiting.held == CONCURRENT_PARTS
