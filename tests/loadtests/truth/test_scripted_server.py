"""Tests of the scripted server and its log, with grpcio and the standard library as clients."""

import http.client
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import urlsplit

import grpc
import numpy as np
import pytest

from tests.loadtests.truth.answers import grpc_answer, rest_answer
from tests.loadtests.truth.request_log import Log, percentile
from tests.loadtests.truth.schedule import diurnal, planned, spikes
from tests.loadtests.truth.script import Fault, Script, Wrong
from tests.loadtests.truth.scripted_server import ScriptedServer, serving
from tpuserve_client import tensor
from tpuserve_formats.messages import official

X = np.arange(8, dtype=np.float32).reshape(2, 4)
BODY = json.dumps({"inputs": {"x": X.tolist()}}).encode()
REQUEST = official.PredictRequest()
REQUEST.model_spec.name = "m"
REQUEST.inputs["x"].CopyFrom(tensor.to_proto(X))
MESSAGE = REQUEST.SerializeToString()
FAILURES = (grpc.RpcError, http.client.HTTPException, ConnectionError)

Predict = Callable[[], bytes | int]


# Without it, channels share a connection.
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)


@contextmanager
def grpc_predict(server: ScriptedServer) -> Iterator[Predict]:
    """Yield a function that returns a response's bytes. It raises RpcError."""
    channels = [grpc.insecure_channel(server.grpc, OWN_CONNECTION)]

    def predict() -> bytes:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channels[0].unary_unary(
            "/tensorflow.serving.PredictionService/Predict"
        )
        try:
            return bytes(call(MESSAGE, timeout=60))
        except grpc.RpcError:
            # The next request connects again. It would fail on a connection whose end the channel has not seen yet.
            channels.pop().close()
            channels.append(grpc.insecure_channel(server.grpc, OWN_CONNECTION))
            raise

    yield predict
    channels.pop().close()


@contextmanager
def rest_predict(server: ScriptedServer) -> Iterator[Predict]:
    """Yield a function that returns a response's bytes, or its status if that is not 200."""
    connection = http.client.HTTPConnection(urlsplit(server.rest).netloc, timeout=60)

    def predict() -> bytes | int:
        try:
            connection.request("POST", "/v1/models/m:predict", BODY)
            response = connection.getresponse()
            content = response.read()
        except BaseException:
            connection.close()  # the next request connects again
            raise
        return content if response.status == 200 else response.status

    yield predict
    connection.close()


def outcomes(predict: Predict, right: bytes, count: int) -> list[str]:
    """Describe `count` responses in sequence: right, wrong or failed."""
    found = []
    for _ in range(count):
        try:
            answer = predict()
        except FAILURES:
            answer = 0
        found.append("right" if answer == right else "failed" if isinstance(answer, int) else "wrong")
    return found


def test_both_protocols_answer_and_log() -> None:
    with serving(Script(service_s=0.001)) as server:
        with grpc_predict(server) as predict:
            response = official.PredictResponse.FromString(bytes(predict()))
            np.testing.assert_array_equal(tensor.from_proto(response.outputs["y"]), 2 * X)
        with rest_predict(server) as predict:
            assert json.loads(bytes(predict())) == {"outputs": {"y": (2 * X).tolist(), "rows": [2]}}
        log = server.end()
    assert [(each.protocol, each.model, each.status) for each in log.entries] == [
        ("grpc", "m", "ok"),
        ("rest", "m", "ok"),
    ]
    assert all(entry.arrived_s + entry.service_s <= entry.due_s <= entry.finished_s for entry in log.entries)


@pytest.mark.parametrize("protocol", ["grpc", "rest"])
def test_faults_and_wrong_responses_follow_the_script(protocol: str) -> None:
    faults = {Fault.UNAVAILABLE: 2, Fault.CUT: 3, Fault.TORN: 5}
    script = Script(service_s=0.001, faults=faults, wrong={Wrong.VALUE: 7}, right=1)
    clients = {"grpc": (grpc_predict, grpc_answer(MESSAGE)), "rest": (rest_predict, rest_answer(BODY))}
    client, right = clients[protocol]
    with serving(script) as server, client(server) as predict:
        seen = outcomes(predict, right, 8)
        log = server.end()
    assert seen == ["right", "right", "failed", "failed", "failed", "failed", "failed", "wrong"]
    assert [each.status for each in log.entries] == [
        "ok", "ok", "unavailable", "cut", "unavailable", "torn", "unavailable", "value"
    ]  # fmt: skip


@pytest.mark.parametrize("protocol", ["grpc", "rest"])
def test_useless_responses_have_status_ok(protocol: str) -> None:
    script = Script(service_s=0.001, wrong={Wrong.EMPTY: 2, Wrong.HTML: 3})
    client = {"grpc": grpc_predict, "rest": rest_predict}[protocol]
    with serving(script) as server, client(server) as predict:
        responses = [predict() for _ in range(3)]
        log = server.end()
    assert responses[1] == b""
    assert bytes(responses[2]).startswith(b"<!doctype html>")
    assert [each.status for each in log.entries] == ["ok", "empty", "html"]


def test_answers_are_wrong_above_a_number_in_flight() -> None:
    script = Script(service_s=0.2, wrong_above=2)
    with serving(script) as server, grpc_predict(server) as predict:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda _: predict(), range(4)))
        predict()
        log = server.end()
    assert [each.status for each in log.entries] == ["ok", "ok", "value", "value", "ok"]


def test_models_and_times_have_their_own_scripts() -> None:
    other = Script(service_s=0.3)
    script = Script(service_s=0.1, slow={2: 0.2}, course=((0.0, 1.0), (5.0, 3.0)), cached_s=0.01, models={"m": other})
    assert Script.from_json(script.to_json()).models["m"].service_s == 0.3
    read = Script.from_json(script.to_json())
    assert [read.slow_s(number) for number in (1, 2)] == [None, 0.2]
    assert [read.factor(at_s) for at_s in (0.0, 4.9, 5.0)] == [1.0, 1.0, 3.0]
    with serving(script) as server, grpc_predict(server) as predict:
        predict()
        log = server.end()
    assert [each.service_s for each in log.entries] == [0.3]


def test_slots_serve_in_the_order_of_arrival() -> None:
    with serving(Script(service_s=0.02, slots=2)) as server, grpc_predict(server) as predict:
        with ThreadPoolExecutor(6) as threads:
            list(threads.map(lambda _: predict(), range(6)))
        log = server.end()
    dues = [entry.due_s for entry in log.entries]
    assert dues == sorted(dues)
    for first, third in zip(log.entries, log.entries[2:], strict=False):
        assert third.due_s >= first.due_s + 0.02 - 1e-9


def test_percentiles_are_nearest_ranks() -> None:
    values = [float(value) for value in range(1, 201)]
    assert [percentile(values, percent) for percent in (50, 90, 99, 100)] == [100, 180, 198, 200]
    assert percentile([3.0], 99) == 3.0


def test_latencies_count_from_planned_arrivals() -> None:
    with serving(Script(service_s=0.001)) as server, grpc_predict(server) as predict:
        predict()
        predict()
        log = server.end()
    first, second = log.entries
    # The second request was due a second before it arrived.
    plan = [0.0, second.arrived_s - first.arrived_s - 1.0]
    latencies = log.latencies_from_ms(plan)
    assert latencies == pytest.approx([1000 * first.latency_s, 1000 * (second.latency_s + 1.0)])
    assert log.latencies_from_ms(plan, 1) == latencies[1:]
    assert isinstance(log[1:], Log)


def test_schedules_have_the_planned_rates() -> None:
    assert planned([(2, 100, 100)]) == pytest.approx([number / 100 for number in range(200)])
    ramp = np.array(planned([(2, 0, 100)]))
    assert len(ramp) == 100
    assert ramp[25] == pytest.approx(1.0)  # the integral of 50 t
    steps = np.array(planned([(1, 100, 100), (1, 300, 300)]))
    assert [np.sum(steps < 1), np.sum(steps >= 1)] == [100, 300]
    day = np.array(diurnal(2.0, 100.0, 0.8))
    assert np.sum(day < 1) < np.sum(day >= 1)
    assert len(spikes(1.0, 100, (0.5,), 30)) == 130
    gaps = np.diff(planned([(100, 100, 100)], "poisson"))
    assert gaps.mean() == pytest.approx(0.01, rel=0.05)
    assert gaps.std() == pytest.approx(0.01, rel=0.05)
