"""Tests that requests in the lane get what the long way gives them: answers, errors, metrics, traces, log entries."""

import asyncio
import gc
import math
import weakref
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

from tests.server.request_log.predict_entries import read_lines
from tests.support.lane_house import DENIED, LaneHouse
from tests.support.saved_models import save_function, write_manifest
from tests.support.served_model import ServedModel
from tpuserve_formats.messages.official import PredictRequest, PredictResponse
from tpuserve_formats.messages.oip import ModelInferRequest, ModelInferResponse
from tpuserve_formats.tensor_proto import encode_tensor
from tpuserve_server.core.deadline import Deadline
from tpuserve_server.core.errors import Code, DeadlineExceeded, ServingError
from tpuserve_server.frontends.oip_grpc import inference
from tpuserve_server.frontends.rpc import CallContext, Trailers
from tpuserve_server.frontends.tf_grpc import prediction
from tpuserve_server.telemetry.request_record import RequestRecord
from tpuserve_server.telemetry.trace_context import TraceHeaders
from tpuserve_server.wire.tensor_proto import decode_tensor

PREDICT = "/tensorflow.serving.PredictionService/Predict"
INFER = "/inference.GRPCInferenceService/ModelInfer"
TRACED = TraceHeaders(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
# The lane leaves requests with a priority to the long way, and `high` is the default.
LONG_WAY = b"high"


@dataclass(frozen=True)
class Sent:
    """One request: its method and message, and the parts of its context that the client decides."""

    path: str
    body: bytes
    timeout_s: float = math.inf
    wants_timing: bool = False
    is_traced: bool = False

    def context(self, house: LaneHouse, priority: bytes | None, trailers: Trailers) -> CallContext:
        now_s = house.clock.monotonic_s()
        return CallContext(
            Deadline(now_s + self.timeout_s),
            {},
            raw_priority=priority,
            started_s=now_s,
            lag_s=0.25,
            trailers=trailers,
            wants_timing=self.wants_timing,
            trace_headers=TRACED if self.is_traced else None,
            request_id=b"r1",
        )


def message(
    *values: float,
    model: str = "m",
    version: int | None = None,
    signature: str = "",
    outputs: tuple[str, ...] = (),
    name: str = "x",
    dtype: str = "float32",
    width: int = 2,
    as_content: bool = True,
) -> bytes:
    """Return a request with `values` as rows of `width` numbers."""
    request = PredictRequest(output_filter=outputs)
    request.model_spec.name, request.model_spec.signature_name = model, signature
    if version is not None:
        request.model_spec.version.value = version
    array = np.array([[value] * width for value in values], dtype)
    request.inputs[name].MergeFromString(encode_tensor(array, as_content=as_content))
    return bytes(request.SerializeToString())


def infer_message(
    *values: float,
    model: str = "m",
    version: int | None = None,
    signature: str = "",
    outputs: tuple[str, ...] = (),
    name: str = "x",
    dtype: str = "float32",
    width: int = 2,
    as_content: bool = True,
    request_id: str = "",
    **parameters: int,
) -> bytes:
    """Return the same request in the Open Inference Protocol, with raw contents or typed ones."""
    request = ModelInferRequest(model_name=model, model_version="" if version is None else str(version), id=request_id)
    if signature:
        request.parameters["signature_name"].string_param = signature
    for parameter, value in parameters.items():
        request.parameters[parameter].int64_param = value
    array = np.array([[value] * width for value in values], dtype)
    tensor = request.inputs.add(name=name, datatype="FP32" if dtype == "float32" else "FP64", shape=array.shape)
    if as_content:
        request.raw_input_contents.append(array.tobytes())
    elif dtype == "float32":
        tensor.contents.fp32_contents.extend(array.reshape(-1))
    else:
        tensor.contents.fp64_contents.extend(array.reshape(-1))
    for output in outputs:
        request.outputs.add(name=output)
    return bytes(request.SerializeToString())


@st.composite
def requests(draw: st.DrawFn) -> Sent:
    """Draw a request: a usual one, or one that is unusual or wrong in one or several of many ways."""
    is_usual = draw(st.sampled_from([True, True, False]))
    numbers = [1.0, 2.5, 3.0] if is_usual else [1.0, 2.5, 3.0, -1.0]
    values = draw(st.lists(st.sampled_from(numbers), min_size=1, max_size=4 if is_usual else 5))

    def often(usual: Any, *others: Any) -> Any:  # noqa: ANN401 - a value of any parameter
        return usual if is_usual else draw(st.sampled_from([usual] * 12 + list(others)))

    fields: dict[str, Any] = {
        "model": often("m", "none", DENIED),
        "version": often(None, 1, 2),
        "signature": often("", "serving_default", "other"),
        "outputs": often((), ("y",), ("x", "y"), ("nope",), ("y", "y")),
        "name": often("x", "z"),
        "dtype": often("float32", "float64"),
        "width": often(2, 3),
        "as_content": often(True, False),
    }
    if draw(st.booleans()):
        path, body = PREDICT, message(*values, **fields)
    else:
        parameters = often({}, {"timeout": 60_000_000}, {"priority": 2}, {"timeout": -1})
        fields["request_id"] = draw(st.sampled_from(["", "1", "2", "é"]))
        path, body = INFER, infer_message(*values, **fields, **parameters)
    timeout_s = often(math.inf, 60.0, -1.0)
    return Sent(path, body, timeout_s, wants_timing=often(False, True), is_traced=often(False, True))


def seen(record: RequestRecord) -> tuple[object, ...]:
    """Return the parts of a record that do not depend on time."""
    return (
        record.protocol, record.method, record.model, record.version, record.signature, record.code, record.is_cached,
        record.request_id, record.client_trace_id, record.trace, record.error, record.lag_s,
        [stage.name for stage in record.stages],
    )  # fmt: skip


async def outcome(house: LaneHouse, sent: Sent, priority: bytes | None) -> tuple[object, list[str]]:
    """Return the response or the error of a request, and the names of its trailers."""
    trailers: Trailers = []
    try:
        response = await house.call(sent.path, sent.body, sent.context(house, priority, trailers))
    except ServingError as error:
        return (type(error), error.code, error.message), [name for name, _ in trailers]
    return response, [name for name, _ in trailers]


def read_log(folder: Path) -> list[PredictionLog]:
    return read_lines(*folder.iterdir())


async def play(groups: list[list[Sent]], folder: Path, priority: bytes | None) -> dict[str, object]:
    """Send groups of concurrent requests, change the versions between them, and return all that can be observed."""
    house = LaneHouse(folder)
    house.serve(1)
    outcomes: list[object] = []
    for number, group in enumerate(groups):
        outcomes.append(await asyncio.gather(*(outcome(house, sent, priority) for sent in group)))
        if number == len(groups) // 3:
            house.serve(2)
        elif number == 2 * len(groups) // 3:
            await house.retire(1)
    await house.retire(2)
    await house.stop()
    logged = [
        (each.predict_log.request, each.predict_log.response) for each in await asyncio.to_thread(read_log, folder)
    ]
    return {
        "outcomes": outcomes,
        "finished": sorted(
            map(str, ((f.model, f.version, f.signature, f.method, f.code) for f in house.metrics.finished))
        ),
        "records": sorted(str(seen(record)) for record in house.seen.records),
        "traced": sorted(str(seen(record)) for record in house.seen.traced),
        "logged": sorted(map(str, logged)),
        "dropped": sorted(house.batches.dropped),
        "rows": sum(rows for rows, _ in house.batches.batches) if not house.batches.dropped else None,
        "in flight": house.meter.in_flight,
    }


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(pool=st.lists(requests(), min_size=1, max_size=4), data=st.data())
async def test_both_ways_give_the_same(
    pool: list[Sent], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # Few different requests, so that most have a layout.
    groups = data.draw(st.lists(st.lists(st.sampled_from(pool), min_size=1, max_size=4), min_size=3, max_size=12))
    short = await play(groups, tmp_path_factory.mktemp("short"), None)
    long = await play(groups, tmp_path_factory.mktemp("long"), LONG_WAY)
    assert short == long


@pytest.fixture
async def house() -> AsyncIterator[LaneHouse]:
    house = LaneHouse(is_observed=False)
    house.serve(1)
    yield house
    for servable in house.servables.values():
        servable.gate.set()
    await house.stop()


async def answer(house: LaneHouse, *values: float, **fields: Any) -> list[float]:  # noqa: ANN401 - `message` has types
    """Send a request, and return the first column of its output."""
    response = await house.call(PREDICT, message(*values, **fields), CallContext(Deadline.never(), {}))
    y: list[float] = decode_tensor("y", PredictResponse.FromString(response).outputs["y"])[:, 0].tolist()
    return y


def version_of(response: bytes) -> int:
    return int(PredictResponse.FromString(response).model_spec.version.value)


async def test_requests_get_their_own_numbers(house: LaneHouse) -> None:
    for number in range(1, 20):
        assert await answer(house, number, number + 0.5) == [2 * number, 2 * number + 1]
    got = await asyncio.gather(*(answer(house, number) for number in range(50)))
    assert got == [[2.0 * number] for number in range(50)]


async def test_each_response_has_the_id_of_its_request(house: LaneHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    context = CallContext(Deadline.never(), {})
    for number in (1, 2):
        await house.call(INFER, infer_message(1, request_id=str(number)), context)
    monkeypatch.delattr(inference, "parse_infer_request")
    for number in (3, 4):
        response = ModelInferResponse.FromString(
            await house.call(INFER, infer_message(number, request_id=str(number)), context)
        )
        assert response.id == str(number)
        assert [output.name for output in response.outputs] == ["y", "x"]
        assert np.frombuffer(response.raw_output_contents[0], np.float32).tolist() == [2 * number] * 2


async def test_a_known_request_is_not_parsed(house: LaneHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        await answer(house, 1)
    monkeypatch.delattr(prediction, "parse_predict_request")
    assert await answer(house, 2) == [4]
    with pytest.raises(NameError):
        await answer(house, 1, 2)


async def test_outputs_of_another_shape_are_not_forced_into_the_template(house: LaneHouse) -> None:
    for _ in range(4):
        await answer(house, 1, 2)
    house.servables[1].outputs = {name: np.zeros((2, 3), np.float32) for name in ("x", "y")}
    response = await house.call(PREDICT, message(1, 2), CallContext(Deadline.never(), {}))
    assert decode_tensor("y", PredictResponse.FromString(response).outputs["y"]).shape == (2, 3)


async def test_a_new_version_answers_at_once(house: LaneHouse) -> None:
    context = CallContext(Deadline.never(), {})
    for _ in range(4):
        assert version_of(await house.call(PREDICT, message(1), context)) == 1
    house.serve(2)
    assert version_of(await house.call(PREDICT, message(1), context)) == 2
    assert {(each.version, each.code) for each in house.metrics.finished} == {(1, Code.OK), (2, Code.OK)}


async def test_an_unloaded_version_is_not_kept_in_memory(house: LaneHouse) -> None:
    servable = house.serve(2)
    for _ in range(4):
        await answer(house, 1)
    servable_gone, batcher_gone = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    weakref.finalize(servable, loop.call_soon_threadsafe, servable_gone.set)
    weakref.finalize(house.batchers[2], loop.call_soon_threadsafe, batcher_gone.set)
    await house.retire(2)
    del servable
    gc.collect()
    # The thread that stopped the batcher may release it a little later.
    await asyncio.wait_for(asyncio.gather(servable_gone.wait(), batcher_gone.wait()), 10)


async def test_a_version_with_a_response_cache_takes_the_long_way(house: LaneHouse) -> None:
    house.serve(2, is_cached=True)
    for _ in range(200):
        assert await answer(house, 3) == [6]
    assert len(house.servables[2].batches) == 1


async def test_a_cancelled_request_leaves_the_queue_and_says_why(house: LaneHouse) -> None:
    for _ in range(4):
        await answer(house, 1)
    gate, entered = house.servables[1].gate, house.servables[1].entered
    gate.clear()
    while entered.acquire(blocking=False):
        pass
    running = asyncio.create_task(answer(house, 1))
    assert await asyncio.to_thread(entered.acquire, timeout=10)
    waiting = asyncio.create_task(answer(house, 1))
    # A task runs until it waits for its batch.
    await asyncio.sleep(0)
    assert house.meter.in_flight == 2
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.set()
    assert await running == [2]
    assert house.batches.dropped == ["cancelled"]
    assert [each.code for each in house.metrics.finished][-2:] == [Code.CANCELLED, Code.OK]
    assert house.meter.in_flight == 0


async def test_a_deadline_ends_a_request_while_the_device_is_busy(house: LaneHouse) -> None:
    for _ in range(4):
        await answer(house, 1)
    house.servables[1].gate.clear()
    context = CallContext(Deadline.after(0.01, house.clock), {})
    with pytest.raises(DeadlineExceeded):
        await house.call(PREDICT, message(1), context)
    assert house.metrics.finished[-1].code is Code.DEADLINE_EXCEEDED
    house.servables[1].gate.set()


async def test_stages_of_one_request_in_many_are_counted(house: LaneHouse) -> None:
    for _ in range(400):
        await answer(house, 1)
    assert sum(requests for _, requests in house.metrics.stages) >= 400 - 127
    assert {"decode", "queue", "batch", "execute", "resume", "encode"} <= house.metrics.stages[-1][0].keys()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8, np.float16])
async def test_tensorflow_reads_the_numbers_where_they_are(dtype: type[np.generic], tmp_path: Path) -> None:
    # The tensors are views of the message, at positions that are no multiple of their size.
    spec = tf.TensorSpec((None, 3), tf.as_dtype(dtype), name="x")
    save_function(tmp_path / "7", lambda x: {"y": x + x}, spec)
    write_manifest(tmp_path / "7")
    random = np.random.default_rng(1)
    with ServedModel(tmp_path / "7") as served:
        for number in range(15):
            x = random.integers(0, 99, (1 + number % 5 % 4, 3)).astype(dtype)
            sent = PredictRequest(model_spec={"name": "m"}, output_filter=["y"])
            sent.inputs["x"].MergeFromString(encode_tensor(x, as_content=True))
            answer = PredictResponse.FromString(await served.call("Predict", sent))
            np.testing.assert_array_equal(decode_tensor("y", answer.outputs["y"]), x + x)
