"""Tests for the queue and the device: cancels, deadlines, overload, bad rows, lack of memory (cases 20 to 25, 50)."""

import concurrent.futures
import contextlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from tensorflow_serving.apis import predict_pb2

from tests.faults.faulted_server import OIP_REST, PATIENCE_S, TF_GRPC, TF_REST, VERTEX, FaultedServer, Faults
from tests.faults.proto_requests import predict_body

SLOW = "/v1/models/slow:predict"
# A request has reached the queue after this time.
ARRIVAL_S = 4.0
# More than any address space has.
HUGE = 10**15
# Half of the time for which TensorFlow's own allocator waits for such memory, and makes all other runs wait.
ALLOCATOR_S = 5.0


def slow_body(steps: int) -> bytes:
    return predict_body(model="slow", steps=np.array([steps], np.int64))


def slow_json(steps: int) -> bytes:
    return json.dumps({"instances": [steps]}).encode()


def metric(server: FaultedServer, name: str, **labels: str) -> float:
    """Return the sum of the series of `slow` that have these labels."""
    page = server.http.get("/metrics").text
    rows = re.findall(rf"^{name}\{{(.*)\}} (\S+)$", page, re.MULTILINE)
    wanted = {"model_name": "slow", **labels}
    return sum(float(value) for have, value in rows if all(f'{key}="{given}"' in have for key, given in wanted.items()))


def cancelled(server: FaultedServer) -> float:
    """Return how many queued requests of `slow` were dropped because their clients left."""
    return metric(server, "tpuserve_dropped_requests_total", reason="cancelled")


@contextlib.contextmanager
def busy(server: FaultedServer, folder: Path) -> Iterator[None]:
    """Run `slow` during the context: it has begun when the context begins, and ends with the context."""
    fifo = folder / "end"
    os.mkfifo(fifo)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        body = predict_body("until", model="slow", path=np.array(str(fifo).encode(), np.object_))
        run = pool.submit(server.send, TF_GRPC, body)
        try:
            while server.send(TF_REST, slow_json(1), {"x-tpuserve-timeout-ms": "100"}, path=SLOW).got == "200":
                assert not run.done(), run.result()
            yield
        finally:
            # Blocks until the model writes.
            assert fifo.read_bytes()
        assert run.result().got == "OK"


@pytest.mark.parametrize("protocol", [TF_GRPC, TF_REST])
def test_request_of_a_client_that_left_never_runs(faults: Faults, protocol: str, tmp_path: Path) -> None:
    server = faults.server
    with faults.fault(20, "the client cancels while its request is queued", protocol, "dropped") as attempt:
        before = cancelled(server)
        with busy(server, tmp_path):
            if protocol == TF_GRPC:
                call = server.channel.unary_unary("/tensorflow.serving.PredictionService/Predict").future(slow_body(1))
                with pytest.raises(grpc.FutureTimeoutError):
                    call.result(timeout=ARRIVAL_S)
                call.cancel()
            else:
                with pytest.raises(httpx.ReadTimeout):
                    httpx.post(server.rest + SLOW, content=slow_json(1), timeout=ARRIVAL_S)
            deadline = time.monotonic() + PATIENCE_S
            while cancelled(server) == before:
                assert time.monotonic() < deadline
        dropped = cancelled(server) - before
        attempt.got = "dropped" if dropped == 1 else f"{dropped:g} dropped"


@pytest.mark.parametrize("protocol", [TF_GRPC, TF_REST])
def test_request_whose_deadline_passes_in_the_queue_never_runs(faults: Faults, protocol: str, tmp_path: Path) -> None:
    # The server may also predict that it is late, and refuse it at once.
    expected = ("DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED") if protocol == TF_GRPC else ("504", "429")
    server = faults.server
    with faults.fault(21, "the deadline passes behind a long batch", protocol, *expected) as attempt:
        with busy(server, tmp_path):
            runs = metric(server, "tpuserve_batch_rows_count")
            if protocol == TF_GRPC:
                predict = server.channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
                with pytest.raises(grpc.RpcError) as raised:
                    predict(slow_body(1), timeout=0.3)
                attempt.got = raised.value.code().name
            else:
                headers = {"x-tpuserve-timeout-ms": "300"}
                attempt.got = server.send(TF_REST, slow_json(1), headers, path=SLOW).got
        assert metric(server, "tpuserve_batch_rows_count") - runs <= 1, "more than the long batch ran"


@pytest.mark.parametrize("protocol", [TF_GRPC, TF_REST])
def test_every_request_of_an_overload_is_answered_or_refused(faults: Faults, protocol: str) -> None:
    """Send 200 requests at once, of which the device can run few within their deadline."""
    server = faults.server
    names = {"OK", "200", "RESOURCE_EXHAUSTED", "429", "DEADLINE_EXCEEDED", "504"}

    def send(_: int) -> str:
        if protocol == TF_REST:
            answer = server.http.post(SLOW, content=slow_json(3_000), headers={"x-tpuserve-timeout-ms": "500"})
            assert answer.status_code != 429 or int(answer.headers["retry-after"]) >= 1
            return str(answer.status_code)
        try:
            server.channel.unary_unary("/tensorflow.serving.PredictionService/Predict")(slow_body(3_000), timeout=0.5)
        except grpc.RpcError as error:
            # A refusal of the server contains a retry hint (gRFC A6).
            trailing: Any = error.trailing_metadata() or ()  # grpcio's stubs do not declare a sequence.
            hints = [float(value) for key, value in trailing if key == "grpc-retry-pushback-ms"]
            hinted = error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED or (len(hints) == 1 and hints[0] > 0)
            return str(error.code().name) if hinted else "no hint when to try again"
        return "OK"

    with faults.fault(
        22, "200 requests at once, deadline 0.5 s", protocol, "each answered or refused", beside=True
    ) as attempt:
        with concurrent.futures.ThreadPoolExecutor(50) as pool:
            codes = Counter(pool.map(send, range(200)))
        attempt.got = "each answered or refused" if codes.keys() <= names else "other codes"
        attempt.detail = ", ".join(f"{count} {code}" for code, count in codes.items())


def _index_grpc(server: FaultedServer, index: int) -> str:
    answer = server.send(TF_GRPC, predict_body("lookup", index=np.array([index], np.int32)))
    if answer.got != "OK":
        return answer.got
    values = predict_pb2.PredictResponse.FromString(answer.content).outputs["value"].int64_val
    return "right" if list(values) == [10 * (index + 1)] else "wrong"


def _index_rest(path: str) -> Callable[[FaultedServer, int], str]:
    def look_up(server: FaultedServer, index: int) -> str:
        body: dict[str, object] = {"signature_name": "lookup", "instances": [index]}
        if "endpoints" in path:
            body = {"instances": [index], "parameters": {"signature_name": "lookup"}}
        answer = server.http.post(path, json=body)
        if answer.status_code != 200:
            return str(answer.status_code)
        return "right" if answer.json() == {"predictions": [10 * (index + 1)]} else "wrong"

    return look_up


def _index_oip(server: FaultedServer, index: int) -> str:
    item = {"name": "index", "datatype": "INT32", "shape": [1], "data": [index]}
    answer = server.http.post("/v2/models/m/infer", json={"inputs": [item], "parameters": {"signature_name": "lookup"}})
    if answer.status_code != 200:
        return str(answer.status_code)
    return "right" if answer.json()["outputs"][0]["data"] == [10 * (index + 1)] else "wrong"


LOOKUPS: dict[str, Callable[[FaultedServer, int], str]] = {
    TF_GRPC: _index_grpc,
    TF_REST: _index_rest("/v1/models/m:predict"),
    OIP_REST: _index_oip,
    VERTEX: _index_rest("/v1/endpoints/12/deployedModels/34:predict"),
}


@pytest.mark.parametrize("protocol", LOOKUPS)
def test_bad_row_fails_its_owner_alone(faults: Faults, protocol: str) -> None:
    with faults.fault(23, "50 bad rows among 150 good ones", protocol, "150 right, 50 refused") as attempt:
        indices = [0, 1, 2, 9] * 50
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda index: LOOKUPS[protocol](faults.server, index), indices))
        good = sum(answer == "right" for index, answer in zip(indices, answers, strict=True) if index != 9)
        bad = sum(
            answer in ("400", "INVALID_ARGUMENT") for index, answer in zip(indices, answers, strict=True) if index == 9
        )
        attempt.got = f"{good} right, {bad} refused"


@pytest.mark.parametrize(("case", "protocol"), [(25, TF_REST), (50, TF_GRPC)])
def test_lack_of_memory_fails_one_request_at_once(faults: Faults, case: int, protocol: str) -> None:
    expected = "INTERNAL" if protocol == TF_GRPC else "500"
    with faults.fault(case, "a run that allocates 4 PB", protocol, expected, beside=True) as attempt:
        if protocol == TF_GRPC:
            body = predict_body("greedy", model="slow", count=np.array([HUGE]))
        else:
            body = json.dumps({"signature_name": "greedy", "inputs": {"count": [HUGE]}}).encode()
        began = time.monotonic()
        answer = faults.server.send(protocol, body, path=SLOW if protocol == TF_REST else None)
        attempt.got = answer.got
        assert "ran out of memory" in answer.text
        assert time.monotonic() - began < ALLOCATOR_S
        assert faults.server.send(TF_GRPC, slow_body(1)).got == "OK"
    assert attempt.others is not None
    assert attempt.others.worst_ms < 1000 * ALLOCATOR_S
