"""Tests for the Open Inference Protocol over REST, called through ASGI like by a host."""

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest

from tests.support.fakes import FakeClock, FakeMetrics, FakeService, Finished
from tpuserve_server.core.serving.budgets import Budgets
from tpuserve_server.core.serving.options import BudgetOptions
from tpuserve_server.core.terms.errors import AlreadyExists, Code, Unavailable
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import Signature, TensorSpec
from tpuserve_server.protocols.control import Control
from tpuserve_server.protocols.oip_rest.v2 import V2
from tpuserve_server.protocols.options import ControlOptions
from tpuserve_server.protocols.request_meter import RequestMeter
from tpuserve_server.protocols.rest import RestOptions, rest_app

INFER = "/v2/models/m/infer"
X: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 3]}
BINARY: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
DATA = np.array([1, 3], np.float32).tobytes()
ANSWER = np.array([2.5, 3.5], np.float32).tobytes()
LENGTH = "Inference-Header-Content-Length"


class Rest:
    """The application, and a client over ASGI that raises the application's exceptions."""

    def __init__(self) -> None:
        self.service = FakeService()
        self.metrics = FakeMetrics()
        options = RestOptions(max_body_bytes=4 << 20, timeout_s=2.5)
        app = rest_app(self.service, self.metrics, FakeClock(now_s=10), lambda: ([b""], ""), options)
        self.app = app
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server")

    async def infer(self, document: object, binary: bytes = b"", path: str = INFER, **headers: str) -> httpx.Response:
        text = json.dumps(document).encode()
        if binary:
            headers[LENGTH] = str(len(text))
        return await self.client.post(path, content=text + binary, headers=headers)

    async def get(self, path: str) -> tuple[int, Any]:
        response = await self.client.get(path)
        assert response.headers["content-type"] == "application/json"
        return response.status_code, response.json()


@pytest.fixture
async def rest() -> AsyncIterator[Rest]:
    made = Rest()
    async with made.client:
        yield made


async def test_a_request_in_json_is_answered_in_json(rest: Rest) -> None:
    response = await rest.infer({"id": "q", "inputs": [X]}, path="/v2/models/m/versions/7/infer?test=1")
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    assert LENGTH not in response.headers
    assert response.json() == {
        "id": "q",
        "model_name": "m",
        "model_version": "7",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [2], "data": [2.5, 3.5]}],
    }
    assert rest.metrics.finished == [Finished("m", "ModelInfer", "rest", Code.OK, 0.0)]
    (request,) = rest.service.requests
    assert (request.deadline.at_s, request.spec.version) == (12.5, 7)
    assert rest.service.acquired[0].released


@pytest.mark.parametrize(
    "more",
    [
        {"parameters": {"binary_data_output": True}},
        {"outputs": [{"name": "y", "parameters": {"binary_data": True}}]},
    ],
)
async def test_binary_tensors_go_both_ways(rest: Rest, more: dict[str, Any]) -> None:
    response = await rest.infer({"inputs": [BINARY], **more}, DATA)
    assert response.headers["content-type"] == "application/octet-stream"
    length = int(response.headers[LENGTH])
    assert json.loads(response.content[:length])["outputs"] == [
        {"name": "y", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
    ]
    assert response.content[length:] == ANSWER


async def test_requested_outputs_are_json_unless_they_say_otherwise(rest: Rest) -> None:
    document = {"inputs": [X], "outputs": [{"name": "y"}], "parameters": {"binary_data_output": True}}
    assert (await rest.infer(document)).json()["outputs"][0]["data"] == [2.5, 3.5]
    assert rest.service.requests[0].output_filter == ("y",)


async def test_a_request_without_json_is_the_only_input(rest: Rest) -> None:
    response = await rest.client.post(INFER, content=DATA, headers={LENGTH: "0"})
    assert response.content[int(response.headers[LENGTH]) :] == ANSWER


@pytest.mark.parametrize(("coding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_the_length_counts_json_that_is_not_compressed(rest: Rest, coding: str, compress: Any) -> None:  # noqa: ANN401 (a function)
    rest.service.run = lambda inputs: {"y": np.zeros(2000, np.float32)}
    text = json.dumps({"inputs": [BINARY], "parameters": {"binary_data_output": True}}).encode()
    headers = {LENGTH: str(len(text)), "Content-Encoding": coding, "Accept-Encoding": coding}
    response = await rest.client.post(INFER, content=compress(text + DATA), headers=headers)
    assert response.headers["content-encoding"] == coding
    assert response.content[int(response.headers[LENGTH]) :] == bytes(8000)


@pytest.mark.parametrize(
    ("length", "message"),
    [
        ("-1", "inference header size should be in range (0, 77), got: -1"),
        ("78", "inference header size should be in range (0, 77), got: 78"),
        ("x", "Unable to parse Inference-Header-Content-Length, got: x"),
        ("3.9", "Unable to parse Inference-Header-Content-Length, got: 3.9"),
        ("", "Unable to parse Inference-Header-Content-Length, got: "),
        (
            "9" * 5000,
            "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], got: "
            + "9" * 32,
        ),
        ("10", "failed to parse the request JSON buffer"),
    ],
)
async def test_wrong_lengths_are_refused(rest: Rest, length: str, message: str) -> None:
    response = await rest.client.post(INFER, content=json.dumps({"inputs": [X]}), headers={LENGTH: length})
    assert response.status_code == 400
    assert response.json()["error"].startswith(message)
    assert rest.service.requests == []


async def test_parameters_reach_the_service(rest: Rest) -> None:
    rest.service.signatures["s"] = rest.service.signatures["serving_default"]
    await rest.infer({"inputs": [X], "parameters": {"signature_name": "s", "timeout": 500_000, "priority": 2}})
    (request,) = rest.service.requests
    assert (request.spec.signature_name, request.deadline.at_s, request.priority) == ("s", 10.5, Priority.LOW)


async def test_classes_are_strings(rest: Rest) -> None:
    rest.service.class_names = ("cat", "dog")
    document = {"inputs": [X], "outputs": [{"name": "y", "parameters": {"classification": 2}}]}
    (output,) = (await rest.infer(document)).json()["outputs"]
    assert output == {"name": "y", "datatype": "BYTES", "shape": [2], "data": ["3.500000:1:dog", "2.500000:0:cat"]}


async def test_large_requests_in_json_are_decoded_beside_the_event_loop(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    async def to_thread(function: Any, *arguments: Any) -> Any:  # noqa: ANN401 (passed through)
        calls.append(function.__name__)
        return function(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    for document, binary in (({"inputs": [X], "n": " " * (1 << 20)}, b""), ({"inputs": [BINARY]}, DATA)):
        calls.clear()
        assert (await rest.infer(document, binary)).status_code == 200
        assert calls == ([] if binary else ["parse_infer_json", "decode_inputs"])


@pytest.mark.parametrize("fault", [Unavailable("full"), AlreadyExists("a table")])
async def test_errors_are_json_and_are_counted(rest: Rest, fault: Exception) -> None:
    rest.service.fault = fault
    response = await rest.infer({"inputs": [X]})
    assert response.status_code >= 400
    assert response.json() == {"error": str(fault)}
    assert rest.metrics.finished[0].model == "m"


@pytest.mark.parametrize(
    ("method", "path", "status", "error"),
    [
        ("GET", "/v2/models", 404, "Not Found"),
        ("GET", INFER, 405, "Method Not Allowed"),
        ("POST", "/v2/models/n/infer", 404, "Request for unknown model: 'n' is not found"),
        ("POST", "/v2/models/m/versions/9/infer", 404, "Request for unknown model: 'm' version 9 is not found"),
        ("GET", "/v2/models/n", 404, "Request for unknown model: 'n' is not found"),
    ],
)
async def test_unknown_paths_methods_and_models_are_refused(
    rest: Rest, method: str, path: str, status: int, error: str
) -> None:
    response = await rest.client.request(method, path, content=json.dumps({"inputs": [X]}))
    assert (response.status_code, response.json()) == (status, {"error": error})


async def test_health_has_the_protocol_s_bodies(rest: Rest) -> None:
    assert await rest.get("/v2/health/live") == (200, {"live": True})
    assert await rest.get("/v2/health/ready") == (200, {"ready": True})
    assert await rest.get("/v2/models/m/versions/7/ready") == (200, {"name": "m", "ready": True})
    reason = "Request for unknown model: 'n' is not found"
    assert await rest.get("/v2/models/n/ready") == (400, {"name": "n", "ready": False, "error": reason})
    rest.service.set_ready("loading")
    assert await rest.get("/v2/health/live") == (200, {"live": True})
    assert await rest.get("/v2/health/ready") == (400, {"ready": False, "error": "loading"})
    rest.service.not_live = "a run has taken 300 s"
    assert await rest.get("/v2/health/live") == (400, {"live": False, "error": "a run has taken 300 s"})
    assert (await rest.get("/v2/models/m/ready"))[1]["error"] == "a run has taken 300 s"


async def test_metadata_describe_the_server_and_the_model(rest: Rest) -> None:
    status, server = await rest.get("/v2")
    assert await rest.get("/v2/") == (status, server)
    assert (status, server["name"]) == (200, "tpuserve")
    assert await rest.get("/v2/models/m") == (
        200,
        {
            "name": "m",
            "versions": ["7"],
            "platform": "tensorflow_savedmodel",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}],
        },
    )


async def test_only_inference_responses_are_compressed(rest: Rest) -> None:
    names = {f"tensor_{number:03}": TensorSpec("x", np.dtype(np.float32), None) for number in range(200)}
    rest.service.signatures["serving_default"] = Signature("serving_default", names, names)
    response = await rest.client.get("/v2/models/m", headers={"accept-encoding": "gzip"})
    assert len(response.content) > 4096
    assert "content-encoding" not in response.headers


def test_the_guard_finds_the_model_of_a_path() -> None:
    service, clock = FakeService(), FakeClock()
    budgets, control = Budgets.of(BudgetOptions(), 1 << 20, clock), Control(ControlOptions())
    protocol = V2(service, None, RequestMeter(service, FakeMetrics(), clock, "rest"), budgets, control)
    assert protocol.facts_of("POST", b"/v2/models/a%20b/infer").model == "a b"
    assert protocol.facts_of("GET", b"/v2").model is None
    assert protocol.facts_of("GET", b"/v2/nothing").model is None


@pytest.mark.parametrize(
    ("client", "status"), [(("10.0.0.1", 1), 403), (("127.0.0.1", 1), 404), (("::ffff:127.0.0.1", 1), 404)]
)
@pytest.mark.parametrize("path", ["/v2/repository/models/m/load", "/v2/repository/models/m/unload", "/v2/logging"])
async def test_control_is_refused_to_other_machines(
    rest: Rest, client: tuple[str, int], status: int, path: str
) -> None:
    # Without an administration these paths are unknown to those who may use them.
    transport = httpx.ASGITransport(rest.app, client=client)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as other:
        assert (await other.post(path, content=b"{}")).status_code == status
        assert (await other.get("/v2/health/live")).status_code == 200
