"""Tests that requests in the lane get what the long way gives them: answers, errors, metrics, traces, log entries."""

import asyncio
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

from tests.server.observe.request_log.predict_entries import read_lines
from tests.support.lane_house import DENIED, LaneHouse
from tests.support.lane_messages import INFER, PREDICT, RestMessage, infer_message, message, predict_json, rest_message
from tests.support.saved_models import save_function, write_manifest
from tests.support.served_model import ServedModel
from tpuserve_formats.messages.official import PredictRequest, PredictResponse
from tpuserve_formats.tensor_proto import encode_tensor
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.hosts.rest_calls import RestCalls
from tpuserve_server.observe.requests.request_record import RequestRecord
from tpuserve_server.observe.requests.trace_context import TraceHeaders
from tpuserve_server.protocols.priority import PRIORITY_HEADER
from tpuserve_server.protocols.request_lane import RequestLane, RestLane
from tpuserve_server.protocols.rpc import CallContext, Trailers
from tpuserve_server.wire.predict_proto import decode_tensor

TRACED = TraceHeaders(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
TRACED_OVER_REST = {"traceparent": TRACED.traceparent.decode(), "x-request-id": "r1"}


@dataclass(frozen=True)
class Sent:
    """One request: its method and message, and the parts of its context that the client decides."""

    path: str
    body: bytes
    rest: RestMessage | None = None
    timeout_s: float = math.inf
    wants_timing: bool = False
    is_traced: bool = False
    priority: bytes | None = None

    def context(self, house: LaneHouse, trailers: Trailers) -> CallContext:
        now_s = house.clock.monotonic_s()
        return CallContext(
            Deadline(now_s + self.timeout_s),
            {},
            raw_priority=self.priority,
            started_s=now_s,
            trailers=trailers,
            wants_timing=self.wants_timing,
            trace_headers=TRACED if self.is_traced else None,
            request_id=b"r1",
        )


@st.composite
def requests(draw: st.DrawFn) -> Sent:
    """Draw a request: a usual one, or one that is unusual or wrong in one or several of many ways."""
    is_usual = draw(st.sampled_from([True, True, False]))
    numbers = [1.0, 2.5, 3.0, math.inf] if is_usual else [1.0, 2.5, 3.0, -1.0]
    values = draw(st.lists(st.sampled_from(numbers), min_size=1, max_size=4 if is_usual else 5))

    def often(usual: Any, *others: Any) -> Any:  # noqa: ANN401 - a value of any parameter
        return usual if is_usual else draw(st.sampled_from([usual] * 12 + list(others)))

    fields: dict[str, Any] = {
        "model": often("m", "none", DENIED),
        "version": often(None, 1, 2),
        "signature": draw(st.sampled_from(["", "only_y"])) if is_usual else often("", "serving_default", "other"),
        "outputs": often((), ("y",), ("x", "y"), ("nope",), ("y", "y")),
        "name": often("x", "z"),
        "dtype": often("float32", "float64"),
        "width": often(2, 3),
        "as_content": often(True, False),
    }
    client: dict[str, Any] = {
        "timeout_s": often(math.inf, 60.0, -1.0),
        "wants_timing": often(False, True),
        "is_traced": often(False, True),
        "priority": often(None, b"low", b"high", b"none"),
    }
    if (protocol := draw(st.sampled_from([PREDICT, INFER, "REST", "JSON"]))) == PREDICT:
        return Sent(PREDICT, message(*values, **fields), **client)
    if protocol == "JSON":
        fields["form"] = draw(st.sampled_from(["rows", "columns", "named"]))
        return Sent("", b"", predict_json(*values, **fields), **client)
    parameters = often({}, {"timeout": 60_000_000}, {"priority": 2}, {"timeout": -1})
    fields["request_id"] = draw(st.sampled_from(["", "1", "2", "é"]))
    if protocol == INFER:
        return Sent(INFER, infer_message(*values, **fields, **parameters), **client)
    fields["is_binary"] = draw(st.sampled_from([True, True, False]))
    fields["as_content"] = draw(st.booleans())
    return Sent("", b"", rest_message(*values, **fields, **parameters), **client)


def seen(record: RequestRecord) -> tuple[object, ...]:
    """Return the parts of a record that do not depend on time."""
    return (
        record.protocol, record.method, record.model, record.version, record.signature, record.code, record.is_cached,
        record.request_id, record.client_trace_id, record.trace, record.error,
        [stage.name for stage in record.stages],
    )  # fmt: skip


async def outcome(house: LaneHouse, sent: Sent, calls: RestCalls | None) -> tuple[object, list[str]]:
    """Return the response or the error of a request, and the names of its trailers or headers."""
    if sent.rest is not None:
        return await rest_outcome(house, sent, sent.rest, calls)
    trailers: Trailers = []
    try:
        response = await house.call(sent.path, sent.body, sent.context(house, trailers))
    except ServingError as error:
        return (type(error), error.code, error.message), [name for name, _ in trailers]
    return response, [name for name, _ in trailers]


async def rest_outcome(
    house: LaneHouse, sent: Sent, message: RestMessage, calls: RestCalls | None
) -> tuple[object, list[str]]:
    headers = dict(TRACED_OVER_REST) if sent.is_traced else {"x-request-id": "r1"}
    if sent.wants_timing:
        headers["x-tpuserve-timing"] = "1"
    if sent.priority is not None:
        headers[PRIORITY_HEADER] = sent.priority.decode()
    if sent.timeout_s != math.inf:
        headers["x-tpuserve-timeout-ms"] = str(1000 * sent.timeout_s)
    answer = await house.post(message, headers, calls=calls)
    fixed = {name: value for name, value in answer.headers.items() if name not in ("server-timing", "traceresponse")}
    return (answer.status_code, answer.content, fixed), list(answer.headers)


def read_log(folder: Path) -> list[PredictionLog]:
    return read_lines(*folder.iterdir())


async def play(
    groups: list[list[Sent]], folder: Path, *, is_cached: bool, is_batched: bool, is_quick: bool = False
) -> dict[str, object]:
    """Send groups of concurrent requests, change the versions between them, and return all that can be observed.

    `is_quick`: the host runs no tasks for requests over REST.
    """
    house = LaneHouse(folder)
    calls = house.rest_calls() if is_quick else None
    house.serve(1, is_cached=is_cached, is_batched=is_batched)
    outcomes: list[object] = []
    for number, group in enumerate(groups):
        outcomes.append(await asyncio.gather(*(outcome(house, sent, calls) for sent in group)))
        if number == len(groups) // 3:
            house.serve(2, is_cached=is_cached, is_batched=is_batched)
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
        "in flight": (house.meter.in_flight, house.rest_meter.in_flight, house.in_flight.count),
    }


def not_taken(*_: object) -> None:
    """Stand in for the lane of REST: leave every request to the long way."""


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    pool=st.lists(requests(), min_size=1, max_size=4),
    server=st.fixed_dictionaries({"is_cached": st.booleans(), "is_batched": st.booleans()}),
    data=st.data(),
)
async def test_both_ways_give_the_same(
    pool: list[Sent], server: dict[str, bool], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # Few different requests, so that most have a layout.
    groups = data.draw(st.lists(st.lists(st.sampled_from(pool), min_size=1, max_size=4), min_size=3, max_size=12))
    quick = await play(groups, tmp_path_factory.mktemp("quick"), **server, is_quick=True)
    short = await play(groups, tmp_path_factory.mktemp("short"), **server)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RestLane, "begin", not_taken)
        patch.setattr(RequestLane, "handle", lambda self, body, context: self.long_way(body, context))
        long = await play(groups, tmp_path_factory.mktemp("long"), **server)
    assert short == long
    assert quick == long


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
