"""Tests that gRPC and REST answer equal requests from the response cache, with the bytes of a run."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.support.fake_device import FakeServable, RecordingMetrics
from tests.support.fakes import FakeMetrics
from tpuserve_formats.messages.official import PredictRequest
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.models.loader import AspiredVersion, LoadedVersion
from tpuserve_server.core.models.model_config import LoggingConfig, ModelConfig
from tpuserve_server.core.models.registry import ModelRegistry
from tpuserve_server.core.models.response_cache import ResponseCaches
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.deadline import Deadline, SystemClock
from tpuserve_server.core.terms.errors import Code, NotFound
from tpuserve_server.core.terms.storage import VersionLocation
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.observe.options import RequestLogOptions, Rotation
from tpuserve_server.observe.request_log.request_logs import RequestLogs
from tpuserve_server.observe.request_log.writer import LogWriter
from tpuserve_server.protocols.rest import RestOptions, rest_app
from tpuserve_server.protocols.rpc import CallContext, UnaryMethod
from tpuserve_server.protocols.table import rpc_table
from tpuserve_server.wire.predict_proto import encode_predict_request

PREDICT = "/v1/models/m:predict"
ROWS = b'{"instances": [[1, 2]]}'
INFERENCE = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}'
ID = ServableId("m", 1)


class House:
    """Both front-ends over one service. `serve` loads versions of a model on a fake device, all in one cache."""

    def __init__(self, folder: Path) -> None:
        self.metrics = FakeMetrics()
        self.clock = SystemClock()
        self.registry = ModelRegistry(["m"], RecordingMetrics())
        self.service = InferenceService(self.registry, self.clock)
        self.caches = ResponseCaches()
        self.servables: dict[int, FakeServable] = {}
        self.batchers: list[Batcher] = []
        self.writer = LogWriter(Rotation(), self.clock, RecordingMetrics())  # type: ignore[arg-type]  # writes nothing
        self.logs = RequestLogs(RequestLogOptions(), self.writer)
        self.folder = folder
        rest = rest_app(self.service, self.metrics, self.clock, lambda: ([b""], ""), RestOptions(), logs=self.logs)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(rest), base_url="http://server")
        method = rpc_table(self.service, self.metrics, self.clock, logs=self.logs)[
            "/tensorflow.serving.PredictionService/Predict"
        ]
        assert isinstance(method, UnaryMethod)
        self.grpc = method

    def serve(self, version: int, *, is_cached: bool = True) -> None:
        servable_id = ServableId("m", version)
        servable = self.servables[version] = FakeServable()
        batcher = Batcher(
            BatchedVersion(servable_id, servable, {"serving_default": BatchingOptions(4, (1, 2, 4))}),
            BatchingParameters(),
            DeviceServices(self.clock, RecordingMetrics()),
        )
        self.batchers.append(batcher)
        responses = self.caches.open(servable_id, 1 << 20) if is_cached else None
        known = {number: AspiredVersion(ServableId("m", number), VersionLocation("/m")) for number in self.servables}
        self.registry.aspire("m", known)
        self.registry.loading(servable_id)
        self.registry.available(servable_id, LoadedVersion(servable, batcher, responses=responses))

    def log_requests(self) -> None:
        self.logs.configure([ModelConfig("m", "/m", logging=LoggingConfig("", str(self.folder / "log"), 1.0))])

    @property
    def runs(self) -> int:
        return sum(len(servable.batches) for servable in self.servables.values())

    async def post(self, body: bytes = ROWS, path: str = PREDICT) -> httpx.Response:
        return await self.client.post(path, content=body)

    async def call(self, body: bytes) -> bytes:
        return await self.grpc.handle(body, CallContext(Deadline.never(), {}))


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    house = House(tmp_path)
    async with house.client:
        yield house
    for batcher in house.batchers:
        await asyncio.to_thread(batcher.stop)


def request(version: int = 1, *values: float) -> bytes:
    return encode_predict_request(ServableId("m", version), "", {"x": np.array([values or (1, 2)], np.float32)})


async def test_rest_answers_equal_bodies_with_equal_bytes(house: House) -> None:
    house.serve(1)
    first, second = await house.post(), await house.post()
    assert first.content == second.content
    assert first.json()["predictions"] == [{"x": [1.0, 2.0], "y": [2.0, 4.0]}]
    headers = [dict(each.headers) for each in (first, second)]
    assert [each.pop("x-tpuserve-cache") for each in headers] == ["miss", "hit"]
    assert headers[0] == headers[1]
    assert house.runs == 1
    finished = house.metrics.finished
    assert finished[0].code is finished[1].code is Code.OK
    assert [(each.model, each.version, each.signature, each.method) for each in finished] == [
        ("m", 1, "serving_default", "Predict")
    ] * 2


async def test_grpc_answers_equal_messages_with_equal_bytes(house: House) -> None:
    house.serve(1)
    first, second = await house.call(request()), await house.call(request())
    assert first == second
    assert house.runs == 1
    finished = house.metrics.finished
    assert [(each.model, each.version, each.signature, each.code) for each in finished] == [
        ("m", 1, "serving_default", Code.OK)
    ] * 2


async def test_equal_inputs_are_found_across_protocols_and_forms_of_a_body(house: House) -> None:
    house.serve(1)
    answer = await house.call(request())
    for body in (ROWS, b'{"instances": [[1.0, 2e0]]}', b'{"signature_name": "serving_default", "instances": [[1, 2]]}'):
        response = await house.post(body)
        assert response.headers["x-tpuserve-cache"] == "hit"
    columns = await house.post(b'{"inputs": [[1, 2]]}')
    assert columns.headers["x-tpuserve-cache"] == "hit"
    assert columns.json() == {"outputs": {"x": [[1.0, 2.0]], "y": [[2.0, 4.0]]}}
    assert house.runs == 1
    filtered = PredictRequest.FromString(request())
    filtered.output_filter.append("y")
    assert await house.call(filtered.SerializeToString()) != answer
    assert house.runs == 2


async def test_a_new_version_answers_the_same_bytes_itself(house: House) -> None:
    house.serve(1)
    await house.post()
    house.serve(2)
    response = await house.post()
    assert (response.headers["x-tpuserve-cache"], response.headers["x-tpuserve-model-version"]) == ("miss", "2")
    old = await house.post(path="/v1/models/m/versions/1:predict")
    assert (old.headers["x-tpuserve-cache"], old.headers["x-tpuserve-model-version"]) == ("hit", "1")


async def test_versions_with_and_without_a_cache_live_side_by_side(house: House) -> None:
    house.serve(1)
    house.serve(2, is_cached=False)
    for _ in range(2):
        assert "x-tpuserve-cache" not in (await house.post()).headers
    assert house.runs == 2


async def test_errors_are_those_of_a_server_without_a_cache(house: House) -> None:
    house.serve(1)
    for _ in range(2):
        assert (await house.post(b"{")).status_code == 400
        assert (await house.post(b"{", "/v1/models/n:predict")).status_code == 400
        assert (await house.post(path="/v1/models/n:predict")).status_code == 404
        with pytest.raises(NotFound):
            await house.call(request(9))
        assert (await house.post(b'{"instances": [[-1, 2]]}')).status_code == 400
    assert house.runs == 2


async def test_large_bodies_are_found_too(house: House) -> None:
    house.serve(1)
    body = b'{"instances": [[1, 2]]' + b" " * (1 << 20) + b"}"
    assert [(await house.post(body)).headers["x-tpuserve-cache"] for _ in range(2)] == ["miss", "hit"]


async def test_responses_from_the_cache_are_logged(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.serve(1)
    house.log_requests()
    logged: list[object] = []
    monkeypatch.setattr(house.writer, "add", logged.append)
    for _ in range(2):
        await house.post()
        await house.call(request())
        await house.post(INFERENCE, "/v2/models/m/infer")
    assert house.runs == 1
    assert len(logged) == 6
