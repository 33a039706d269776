"""Tests that ModelInfer and REST's infer answer equal requests from the response cache, with the bytes of a run."""

import gzip
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.administered_server import AdministeredServer
from tests.support.shared_memory import PREFIX, SharedObject
from tpuserve_formats.messages.oip import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse
from tpuserve_server.core.models.response_cache import VersionResponses
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.protocols.rpc import CallContext, StreamMethod

INFER = "/v2/models/a/infer"
INPUT = {"name": "x", "datatype": "FP32", "shape": [1, 2]}
ROWS: dict[str, Any] = {"inputs": [{**INPUT, "data": [1, 2]}]}
X = np.array([[1, 2]], np.float32)
LENGTH = "inference-header-content-length"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AdministeredServer]:
    with AdministeredServer(tmp_path, prefixes=(PREFIX,), cache_bytes=1 << 20) as server:
        yield server


@pytest.fixture
def found_by_bytes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record whether each look-up by bytes finds a response."""
    found: list[bool] = []
    find = VersionResponses.find_encoded

    def recorded(self: VersionResponses, key: bytes) -> object:
        response = find(self, key)
        found.append(response is not None)
        return response

    monkeypatch.setattr(VersionResponses, "find_encoded", recorded)
    return found


def message(request_id: str = "") -> ModelInferRequest:
    tensor = ModelInferRequest.InferInputTensor(**INPUT)  # type: ignore[arg-type]  # one dict for both protocols
    return ModelInferRequest(model_name="a", id=request_id, inputs=[tensor], raw_input_contents=[X.tobytes()])


def binary(request_id: str = "") -> tuple[bytes, dict[str, str]]:
    """Return a body with binary data in both directions, and its header."""
    tensor = {**INPUT, "parameters": {"binary_data_size": X.nbytes}}
    document: dict[str, Any] = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
    text = json.dumps({"id": request_id, **document} if request_id else document).encode()
    return text + X.tobytes(), {LENGTH: str(len(text))}


async def runs(server: AdministeredServer) -> int:
    (found,) = (await server.get("/v2/models/a/stats")).json()["model_stats"]
    return int(found["execution_count"])


async def test_json_bodies_are_answered_with_equal_bytes(
    server: AdministeredServer, found_by_bytes: list[bool]
) -> None:
    answers = [await server.post(INFER, ROWS) for _ in range(2)]
    headers = [dict(answer.headers) for answer in answers]
    assert [each.pop("x-tpuserve-cache") for each in headers] == ["miss", "hit"]
    assert headers[0] == headers[1]
    assert answers[0].content == answers[1].content
    assert answers[0].json()["outputs"][0]["data"] == [2.0, 4.0]
    assert found_by_bytes == [False, True]
    assert await runs(server) == 1


async def test_binary_bodies_are_answered_with_equal_bytes_and_headers(
    server: AdministeredServer, found_by_bytes: list[bool]
) -> None:
    body, length = binary()
    answers = [await server.post(INFER, content=body, headers=length) for _ in range(2)]
    headers = [dict(answer.headers) for answer in answers]
    assert [each.pop("x-tpuserve-cache") for each in headers] == ["miss", "hit"]
    assert headers[0] == headers[1]
    assert headers[1]["content-type"] == "application/octet-stream"
    content = answers[1].content
    assert answers[0].content == content
    assert content[int(headers[1][LENGTH]) :][: X.nbytes] == (X * 2).tobytes()
    assert found_by_bytes == [False, True]


async def test_the_length_of_the_json_belongs_to_the_bytes(server: AdministeredServer) -> None:
    body, length = binary()
    assert (await server.post(INFER, content=body, headers=length)).status_code == 200
    assert (await server.post(INFER, content=body)).status_code == 400


async def test_compressed_bodies_are_found_by_their_content(
    server: AdministeredServer, found_by_bytes: list[bool]
) -> None:
    text = json.dumps(ROWS).encode()
    await server.post(INFER, content=text)
    for level in (1, 9):
        packed = gzip.compress(text, level)
        answer = await server.post(INFER, content=packed, headers={"content-encoding": "gzip"})
        assert answer.headers["x-tpuserve-cache"] == "hit"
    assert found_by_bytes == [False, True, True]


async def test_messages_are_answered_with_equal_bytes(server: AdministeredServer, found_by_bytes: list[bool]) -> None:
    first, second = [await server.call("ModelInfer", message(), ModelInferResponse) for _ in range(2)]
    assert first == second
    assert first.raw_output_contents[0] == (X * 2).tobytes()
    assert found_by_bytes == [False, True]
    assert await runs(server) == 1


async def test_requests_of_a_stream_are_found_too(server: AdministeredServer, found_by_bytes: list[bool]) -> None:
    async def requests() -> AsyncIterator[bytes]:
        yield message().SerializeToString()

    method = server.rpc["/inference.GRPCInferenceService/ModelStreamInfer"]
    assert isinstance(method, StreamMethod)
    expected = await server.call("ModelInfer", message(), ModelInferResponse)
    (body,) = [each async for each in method.handle(requests(), CallContext(Deadline.never(), {}))]
    streamed = ModelStreamInferResponse.FromString(body).infer_response
    assert streamed.raw_output_contents == expected.raw_output_contents
    assert found_by_bytes == [False, True]


async def test_equal_inputs_are_found_across_protocols_and_forms_of_a_body(server: AdministeredServer) -> None:
    await server.call("ModelInfer", message(), ModelInferResponse)
    body, length = binary()
    for answer in (await server.post(INFER, ROWS), await server.post(INFER, content=body, headers=length)):
        assert answer.headers["x-tpuserve-cache"] == "hit"
    assert await runs(server) == 1
    await server.post(INFER, {**ROWS, "outputs": [{"name": "y"}]})
    assert await runs(server) == 2


async def test_each_request_gets_its_own_id_and_leaves_no_bytes(
    server: AdministeredServer, found_by_bytes: list[bool]
) -> None:
    for request_id in ("1", "2", "2"):
        answer = await server.post(INFER, {"id": request_id, **ROWS})
        assert answer.json()["id"] == request_id
        body, length = binary(request_id)
        answer = await server.post(INFER, content=body, headers=length)
        assert json.loads(answer.content[: int(answer.headers[LENGTH])])["id"] == request_id
        assert answer.headers["x-tpuserve-cache"] == "hit"
        assert (await server.call("ModelInfer", message(request_id), ModelInferResponse)).id == request_id
    assert not any(found_by_bytes)
    assert await runs(server) == 1


async def test_contents_of_shared_memory_are_read_again(server: AdministeredServer, found_by_bytes: list[bool]) -> None:
    with SharedObject("cached", 64) as shared:
        shared.write(X.tobytes(), offset=0)
        server.regions.register("r", shared.key, 0, 64)
        window = {"shared_memory_region": "r", "shared_memory_byte_size": X.nbytes}
        body = {"inputs": [{**INPUT, "parameters": window}], "outputs": [{"name": "y"}]}
        for factor in (1, 3, 3):
            shared.write((X * factor).tobytes(), offset=0)
            answer = await server.post(INFER, body)
            assert answer.json()["outputs"][0]["data"] == [2.0 * factor, 4.0 * factor]
        assert answer.headers["x-tpuserve-cache"] == "hit"
        server.regions.unregister()
    assert found_by_bytes == [False] * 3


async def test_errors_are_not_kept(server: AdministeredServer) -> None:
    bad = {"inputs": [{**INPUT, "data": [-1, 2]}]}
    for _ in range(2):
        answer = await server.post(INFER, bad)
        assert answer.status_code == 400
        assert "x-tpuserve-cache" not in answer.headers
