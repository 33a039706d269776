"""Tests for the request lane: bindings of layouts to versions, ids, cancellation and deadlines."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from starlette.types import Message

from tests.support.lane_house import LaneHouse
from tests.support.lane_messages import INFER, PREDICT, infer_message, message, predict_json, rest_message
from tpuserve_formats.messages.official import PredictResponse
from tpuserve_formats.messages.oip import ModelInferResponse
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import Code, DeadlineExceeded
from tpuserve_server.core.terms.types import ModelSpec
from tpuserve_server.protocols.oip_grpc import inference
from tpuserve_server.protocols.oip_rest import v2
from tpuserve_server.protocols.request_lane import Known
from tpuserve_server.protocols.rpc import CallContext
from tpuserve_server.protocols.tf_grpc import prediction
from tpuserve_server.protocols.tf_rest import v1
from tpuserve_server.protocols.tf_rest.predict_lane import PredictLane
from tpuserve_server.wire.predict_proto import decode_tensor


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


@pytest.mark.parametrize("is_binary", [True, False], ids=["binary outputs", "outputs in JSON"])
async def test_a_known_request_over_rest_is_not_parsed(
    house: LaneHouse, monkeypatch: pytest.MonkeyPatch, is_binary: bool
) -> None:
    async def column(*values: float) -> list[float]:
        answer = await house.post(rest_message(*values, is_binary=is_binary), {})
        assert answer.status_code == 200
        if not is_binary:
            return [output["data"][0] for output in answer.json()["outputs"]]
        length = int(answer.headers["inference-header-content-length"])
        y: list[float] = np.frombuffer(answer.content[length:], np.float32)[::2].tolist()
        return y

    for _ in range(2):
        await column(1)
    monkeypatch.delattr(v2, "parse_infer_json")
    assert [(await column(number))[0] for number in (2, 3)] == [4, 6]


@pytest.mark.parametrize("form", ["rows", "columns", "named"])
async def test_a_known_predict_in_json_is_not_parsed(
    house: LaneHouse, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    async def y(*values: float) -> list[float]:
        answer = await house.post(predict_json(*values, form=form, signature="only_y"), {})
        assert answer.status_code == 200
        return [row[0] for row in answer.json()["predictions" if form == "rows" else "outputs"]]

    for _ in range(2):
        await y(1, 2)
    monkeypatch.delattr(v1, "parse_predict_body")
    assert [await y(number, 0.5) for number in (2, 3)] == [[4, 1], [6, 1]]


async def test_known_inference_data_in_json_are_not_parsed(house: LaneHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    async def y(value: float) -> float:
        answer = await house.post(rest_message(value, as_content=False, is_binary=False), {})
        assert answer.status_code == 200
        first: float = answer.json()["outputs"][0]["data"][0]
        return first

    for _ in range(2):
        await y(1)
    monkeypatch.delattr(v2, "parse_infer_json")
    assert [await y(number) for number in (2, 3)] == [4, 6]


async def test_a_request_that_the_lane_leaves_is_offered_once(
    house: LaneHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = house.rest_calls()
    offered: list[bytes] = []
    find = PredictLane.find

    def count(lane: PredictLane, spec: ModelSpec, body: bytes, json_bytes: int | None = None) -> Known | None:
        offered.append(body)
        return find(lane, spec, body, json_bytes)

    monkeypatch.setattr(PredictLane, "find", count)
    unknown = [predict_json(*range(rows)) for rows in (1, 2, 3)]
    for each in unknown:
        assert (await house.post(each, {}, calls=calls)).status_code == 200
    assert offered == [each.body for each in unknown]


async def test_a_client_over_rest_that_leaves_frees_its_place(house: LaneHouse) -> None:
    request = predict_json(1, signature="only_y")
    for _ in range(3):
        await house.post(request, {})
    house.servables[1].gate.clear()
    messages: asyncio.Queue[Message] = asyncio.Queue()
    for _ in range(2):
        messages.put_nowait({"type": "http.request", "body": request.body, "more_body": False})
    # The requests read these after their bodies, when they watch their clients.
    for _ in range(2):
        messages.put_nowait({"type": "http.disconnect"})
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": request.path, "headers": []}
    async with asyncio.timeout(10):
        await asyncio.gather(*(house.app({**scope}, messages.get, send) for _ in range(2)))
    assert not sent
    assert [each.code for each in house.metrics.finished][-2:] == [Code.CANCELLED] * 2
    assert house.rest_meter.in_flight == 0


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
    async with asyncio.timeout(10):
        while not (servable_gone.is_set() and batcher_gone.is_set()):
            # More than once: the thread that stopped the batcher may release it a little later.
            gc.collect()
            await asyncio.sleep(0.01)


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
