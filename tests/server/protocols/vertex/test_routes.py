"""Tests for Vertex AI's routes in front of the guarded REST application."""

import gzip
import json
from dataclasses import dataclass, field

import httpx
import numpy as np
import pytest

from tests.support.fakes import FakeClock, FakeMetrics, FakeService, Finished
from tests.support.guards import make_guard
from tests.support.lane_house import LaneHouse
from tpuserve_server.core.terms.errors import Code, PermissionDenied
from tpuserve_server.protocols.guard import Attempt, Rule
from tpuserve_server.protocols.rest import RestOptions, rest_app
from tpuserve_server.protocols.vertex.paths import VertexPaths
from tpuserve_server.protocols.vertex.routes import VertexRoutes

MAIN = "/v1/models/m:predict"
PREDICT = "/v1/endpoints/1/deployedModels/2:predict"
HEALTH = "/v1/endpoints/1/deployedModels/2"
INFER = "/v2/models/m/infer"
ROWS = {"instances": [1, 3]}
TENSOR = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 3]}
INFERENCE = {"inputs": [TENSOR]}
LENGTH = "inference-header-content-length"
MEDIA_TYPE = "application/vnd.vertex-ai-triton.binary+json;json-header-size="


@dataclass
class Refusing:
    """A rule that refuses every request for the model."""

    attempts: list[Attempt] = field(default_factory=list)

    async def check(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)
        if attempt.model == "m":
            raise PermissionDenied("not this model")


class Rest:
    def __init__(
        self, rule: Rule | None = None, health: str = HEALTH, predict: str = PREDICT, *, needs_credentials: bool = False
    ) -> None:
        self.service = FakeService()
        self.metrics = FakeMetrics()
        app = rest_app(self.service, self.metrics, FakeClock(), lambda: ([b""], "text/plain"), RestOptions())
        paths = VertexPaths.of("m", ("H", health), ("P", predict), [])
        guarded = make_guard(rule).wrap_rest(app)
        routes = VertexRoutes(guarded, paths, self.service, needs_credentials=needs_credentials)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(routes), base_url="http://server")

    async def post(self, path: str = PREDICT, body: object = ROWS) -> httpx.Response:
        return await self.client.post(path, json=body)

    async def get(self, path: str = HEALTH) -> httpx.Response:
        return await self.client.get(path)


def binary_body() -> tuple[bytes, int]:
    """Return a body with binary data in both directions, and the length of its JSON."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
    text = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return text + np.array([1, 3], np.float32).tobytes(), len(text)


async def test_predictions_are_those_of_the_main_route() -> None:
    rest = Rest()
    alias, main = await rest.post(), await rest.post(MAIN)
    assert (alias.status_code, alias.json()) == (200, {"predictions": [2.5, 3.5]})
    assert (alias.content, dict(alias.headers)) == (main.content, dict(main.headers))
    assert rest.metrics.finished == [Finished("m", "Predict", "rest", Code.OK, 0.0)] * 2


@pytest.mark.parametrize("body", [{"inputs": [1, 3]}, {"instances": [{"x": 1}]}, {"instances": "x"}, {}, []])
async def test_raw_bodies_of_the_main_route_are_read_alike(body: object) -> None:
    rest = Rest()
    alias, main = await rest.post(PREDICT, body), await rest.post(MAIN, body)
    assert (alias.status_code, alias.content) == (main.status_code, main.content)


async def test_parameters_may_name_the_signature() -> None:
    rest = Rest()
    for parameters in ({}, None, {"signature_name": "serving_default"}):
        assert (await rest.post(body={**ROWS, "parameters": parameters})).status_code == 200
    assert [each.spec.signature_name for each in rest.service.requests] == ["", "", "serving_default"]
    unknown = await rest.post(body={**ROWS, "parameters": {"signature_name": "s"}})
    assert (unknown.status_code, unknown.json()) == (
        400,
        {"error": 'Serving signature name: "s" not found in signature def'},
    )
    # TensorFlow Serving's own route ignores unknown members.
    assert (await rest.post(MAIN, {**ROWS, "parameters": {"signature_name": "s"}})).status_code == 200


@pytest.mark.parametrize("name", ["parameters", "p\\u0061rameters"])
async def test_parameters_are_read_in_every_request_that_looks_like_others(name: str) -> None:
    house = LaneHouse()
    house.serve(1)
    paths = VertexPaths.of("m", ("H", HEALTH), ("P", PREDICT), [])
    client = httpx.AsyncClient(
        transport=httpx.ASGITransport(VertexRoutes(house.app, paths, house.service)), base_url="http://server"
    )
    for _ in range(5):
        plain = await client.post(PREDICT, content=b'{"instances": [[1, 2]]}')
        assert plain.json() == {"predictions": [{"x": [1.0, 2.0], "y": [2.0, 4.0]}]}
        text = f'{{"instances": [[1, 2]], "{name}": {{"signature_name": "only_y"}}}}'
        assert (await client.post(PREDICT, content=text.encode())).json() == {"predictions": [[2.0, 4.0]]}
    await house.stop()


async def test_a_rule_that_refuses_the_model_refuses_the_alias_too() -> None:
    rule = Refusing()
    rest = Rest(rule)
    alias, main = await rest.post(), await rest.post(MAIN)
    assert (alias.status_code, alias.content) == (main.status_code, main.content)
    assert (main.status_code, main.json()) == (403, {"error": "not this model"})
    assert rule.attempts[0] == rule.attempts[1]
    assert rest.service.requests == []
    assert (await rest.get()).status_code == 200
    assert [attempt.path for attempt in rule.attempts] == [MAIN, MAIN, "/readyz"]


async def test_the_health_route_is_the_readiness() -> None:
    rest = Rest()
    assert (await rest.get()).status_code == 200
    rest.service.not_ready = "loading"
    response = await rest.get()
    assert (response.status_code, response.json()) == (503, {"ready": False, "reason": "loading"})


async def test_a_health_route_that_is_the_models_status_answers_503_until_the_server_is_ready() -> None:
    rest = Rest(health="/v1/models/m", predict=MAIN)
    rest.service.not_ready = "loading"
    assert (await rest.get("/v1/models/m")).status_code == 503
    rest.service.not_ready = ""
    response = await rest.get("/v1/models/m")
    assert response.status_code == 200
    assert response.json()["model_version_status"][0]["state"] == "AVAILABLE"
    assert (await rest.post(MAIN, {**ROWS, "parameters": {"x": 1}})).status_code == 400


@pytest.mark.parametrize("name", ["authorization", "x-api-key"])
async def test_a_probe_without_credentials_gets_the_readiness_and_others_the_status(name: str) -> None:
    rest = Rest(health="/v1/models/m", predict=MAIN, needs_credentials=True)
    assert (await rest.get("/v1/models/m")).json() == {"ready": True, "reason": ""}
    response = await rest.client.get("/v1/models/m", headers={name: "key"})
    assert "model_version_status" in response.json()


@pytest.mark.parametrize(
    "path", [f"{PREDICT}/", PREDICT.upper(), "/v1/endpoints/1/deployedModels/2%3Apredict", "/x" + PREDICT]
)
async def test_only_the_exact_path_is_an_alias(path: str) -> None:
    assert (await Rest().post(path)).status_code in (400, 404)


async def test_inference_requests_get_the_response_of_their_main_route() -> None:
    rest = Rest()
    for body in (INFERENCE, {**INFERENCE, "id": "7", "parameters": {"signature_name": "serving_default"}}):
        alias, main = await rest.post(body=body), await rest.post(INFER, body)
        assert (alias.status_code, alias.json()["outputs"][0]["data"]) == (200, [2.5, 3.5])
        assert (alias.content, dict(alias.headers)) == (main.content, dict(main.headers))
    assert rest.metrics.finished == [Finished("m", "ModelInfer", "rest", Code.OK, 0.0)] * 4


@pytest.mark.parametrize("header", [LENGTH, "content-type"])
async def test_binary_inference_requests_name_the_length_of_their_json(header: str) -> None:
    rest = Rest()
    body, json_bytes = binary_body()
    value = str(json_bytes) if header == LENGTH else f"{MEDIA_TYPE}{json_bytes}"
    alias = await rest.client.post(PREDICT, content=body, headers={header: value})
    main = await rest.client.post(INFER, content=body, headers={LENGTH: str(json_bytes)})
    assert alias.status_code == 200
    assert alias.headers["content-type"] == "application/octet-stream"
    assert alias.content[int(alias.headers[LENGTH]) :] == np.array([2.5, 3.5], np.float32).tobytes()
    assert (alias.content, dict(alias.headers)) == (main.content, dict(main.headers))


async def test_compressed_inference_requests_are_recognized() -> None:
    packed = gzip.compress(json.dumps(INFERENCE).encode())
    answer = await Rest().client.post(PREDICT, content=packed, headers={"content-encoding": "gzip"})
    assert answer.json()["outputs"][0]["data"] == [2.5, 3.5]


@pytest.mark.parametrize(
    "wrong",
    [
        {"inputs": [{**TENSOR, "datatype": "INT8"}]},
        {"inputs": [{**TENSOR, "name": "z"}]},
        {"inputs": [TENSOR], "outputs": [{"name": "z"}]},
        {"inputs": [TENSOR], "parameters": {"signature_name": "z"}},
    ],
)
async def test_errors_of_inference_requests_are_those_of_their_main_route(wrong: object) -> None:
    rest = Rest()
    alias, main = await rest.post(body=wrong), await rest.post(INFER, wrong)
    assert (alias.status_code, alias.content) == (main.status_code, main.content)
    assert alias.status_code == 400


@pytest.mark.parametrize("length", ["9999", "-1", "x", "99999999999999"])
async def test_a_wrong_length_in_the_content_type_is_refused(length: str) -> None:
    answer = await Rest().client.post(PREDICT, content=b"{}", headers={"content-type": MEDIA_TYPE + length})
    assert answer.status_code == 400
    assert length in answer.json()["error"]


async def test_a_rule_that_refuses_the_model_refuses_its_inference_requests() -> None:
    rule = Refusing()
    answer = await Rest(rule).post(body=INFERENCE)
    assert (answer.status_code, answer.json()) == (403, {"error": "not this model"})
    assert [attempt.path for attempt in rule.attempts] == [MAIN]


async def test_the_main_route_of_predictions_reads_no_inference_requests() -> None:
    answer = await Rest().post(MAIN, INFERENCE)
    assert answer.status_code == 400


async def test_other_methods_get_the_errors_of_the_main_route() -> None:
    rest = Rest()
    assert (await rest.get(PREDICT)).json() == (await rest.get(MAIN)).json()
    assert (await rest.post(HEALTH)).status_code == 405


async def test_other_paths_stay() -> None:
    rest = Rest()
    for path in ("/v1/models", "/v1/models/m", "/v1/models/m/metadata", "/metrics", "/healthz", "/readyz"):
        assert (await rest.get(path)).status_code == 200
