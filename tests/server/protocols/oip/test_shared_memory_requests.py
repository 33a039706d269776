"""Tests for shared memory over REST and gRPC: its methods, and requests with tensors in regions."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from tests.support.administered_server import AdministeredServer
from tests.support.shared_memory import PREFIX, SharedObject
from tpuserve_formats.messages.oip import (
    ModelInferRequest,
    ModelInferResponse,
    SystemSharedMemoryRegisterRequest,
    SystemSharedMemoryRegisterResponse,
    SystemSharedMemoryStatusRequest,
    SystemSharedMemoryStatusResponse,
    SystemSharedMemoryUnregisterRequest,
    SystemSharedMemoryUnregisterResponse,
)
from tpuserve_server.core.terms.errors import InvalidArgument, NotFound, ServingError

REGION = "/v2/systemsharedmemory"
X = np.array([[1, 2], [3, 4]], np.float32)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdministeredServer]:
    with AdministeredServer(tmp_path_factory.mktemp("models"), prefixes=(PREFIX,)) as server:
        yield server


@pytest.fixture
def shared(server: AdministeredServer) -> Iterator[SharedObject]:
    with SharedObject("tensors", 64) as shared:
        shared.write(X.tobytes(), offset=16)
        yield shared
    server.regions.unregister()


def window(byte_size: int, offset: int = 0) -> dict[str, Any]:
    return {"shared_memory_region": "r", "shared_memory_byte_size": byte_size, "shared_memory_offset": offset}


def infer_body(output: dict[str, Any] | None = None, parameters: Mapping[str, object] | None = None) -> dict[str, Any]:
    body: dict[str, Any] = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 2], "parameters": parameters or window(16, 16)}],
        "outputs": [{"name": "y", "parameters": window(16, 32) if output is None else output}, {"name": "x"}],
    }
    return body


def infer_message(parameters: dict[str, Any], output: dict[str, Any]) -> ModelInferRequest:
    request = ModelInferRequest(model_name="a")
    tensor = request.inputs.add(name="x", datatype="FP32", shape=[2, 2])
    for name, value in parameters.items():
        tensor.parameters[name].MergeFrom(_parameter(value))
    for name, given in (("y", output), ("x", {})):
        wanted = request.outputs.add(name=name)
        for key, value in given.items():
            wanted.parameters[key].MergeFrom(_parameter(value))
    return request


def _parameter(value: object) -> Any:  # noqa: ANN401 (an InferParameter)
    message = ModelInferRequest()
    field = "string_param" if isinstance(value, str) else "int64_param"
    setattr(message.parameters["p"], field, value)
    return message.parameters["p"]


async def test_regions_are_registered_listed_and_unregistered_over_rest(
    server: AdministeredServer, shared: SharedObject
) -> None:
    body = {"key": shared.key, "offset": 8, "byte_size": 56}
    answer = await server.post(f"{REGION}/region/r/register", body)
    assert (answer.status_code, answer.content) == (200, b"")
    listed = [{"name": "r", **body}]
    assert (await server.get(f"{REGION}/status")).json() == listed
    assert (await server.get(f"{REGION}/region/r/status")).json() == listed
    answer = await server.get(f"{REGION}/region/s/status")
    assert (answer.status_code, answer.json()["error"]) == (404, "Unable to find system shared memory region: 's'")
    answer = await server.post(f"{REGION}/region/r/register", body)
    assert (answer.status_code, answer.json()["error"]) == (409, "shared memory region 'r' already in manager")
    assert (await server.post(f"{REGION}/region/r/unregister")).status_code == 200
    assert (await server.post(f"{REGION}/region/r/unregister")).status_code == 200
    assert (await server.post(f"{REGION}/unregister")).status_code == 200
    assert (await server.get(f"{REGION}/status")).json() == []


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("/register", b"{}", "'region name' is necessary to register system shared memory region"),
        ("/region/r/register", b"", "failed to parse the request JSON buffer"),
        ("/region/r/register", b'{"byte_size": 1}', "Shared memory register request has no 'key' field"),
        ("/region/r/register", b'{"key": "/k"}', "Shared memory register request has no 'byte_size' field"),
        ("/region/r/register", b'{"key": 1, "byte_size": 1}', "Unable to parse 'key'"),
        ("/region/r/register", b'{"key": "/k", "byte_size": -1}', "Unable to parse 'byte_size'"),
        ("/region/r/register", b'{"key": "/k", "byte_size": 1, "offset": 1.5}', "Unable to parse 'offset'"),
    ],
)
async def test_a_malformed_registration_is_refused(
    server: AdministeredServer, path: str, content: bytes, message: str
) -> None:
    answer = await server.post(f"{REGION}{path}", content=content)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(message)


async def test_regions_over_grpc(server: AdministeredServer, shared: SharedObject) -> None:
    request = SystemSharedMemoryRegisterRequest(name="r", key=shared.key, offset=8, byte_size=56)
    await server.call("SystemSharedMemoryRegister", request, SystemSharedMemoryRegisterResponse)
    status = await server.call(
        "SystemSharedMemoryStatus", SystemSharedMemoryStatusRequest(), SystemSharedMemoryStatusResponse
    )
    region = status.regions["r"]
    assert (region.name, region.key, region.offset, region.byte_size) == ("r", shared.key, 8, 56)
    unknown = SystemSharedMemoryStatusRequest(name="s")
    with pytest.raises(NotFound):
        await server.call("SystemSharedMemoryStatus", unknown, SystemSharedMemoryStatusResponse)
    await server.call(
        "SystemSharedMemoryUnregister", SystemSharedMemoryUnregisterRequest(), SystemSharedMemoryUnregisterResponse
    )
    assert server.regions.status() == []


async def test_tensors_in_regions_over_rest(server: AdministeredServer, shared: SharedObject) -> None:
    server.regions.register("r", shared.key, 0, 64)
    answer = await server.post("/v2/models/a/infer", infer_body())
    assert answer.status_code == 200
    assert answer.json()["outputs"] == [
        {"name": "y", "datatype": "FP32", "shape": [2, 2]},
        {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]},
    ]
    assert shared.read()[32:48] == (2 * X).tobytes()


async def test_tensors_in_regions_over_grpc(server: AdministeredServer, shared: SharedObject) -> None:
    server.regions.register("r", shared.key, 0, 64)
    response = await server.call("ModelInfer", infer_message(window(16, 16), window(16, 32)), ModelInferResponse)
    assert [output.name for output in response.outputs] == ["y", "x"]
    assert list(response.raw_output_contents) == [b"", X.tobytes()]
    assert shared.read()[32:48] == (2 * X).tobytes()


async def test_an_input_of_raw_contents_and_an_output_in_a_region(
    server: AdministeredServer, shared: SharedObject
) -> None:
    server.regions.register("r", shared.key, 0, 64)
    request = infer_message({}, window(16))
    request.raw_input_contents.append(X.tobytes())
    response = await server.call("ModelInfer", request, ModelInferResponse)
    assert list(response.raw_output_contents) == [b"", X.tobytes()]
    assert shared.read()[:16] == (2 * X).tobytes()


async def test_raw_contents_for_an_input_in_a_region_are_refused(
    server: AdministeredServer, shared: SharedObject
) -> None:
    server.regions.register("r", shared.key, 0, 64)
    request = infer_message(window(16, 16), {})
    request.raw_input_contents.append(X.tobytes())
    with pytest.raises(InvalidArgument, match="expected 0 raw_input_contents"):
        await server.call("ModelInfer", request, ModelInferResponse)
    del request.raw_input_contents[:]
    request.inputs[0].contents.fp32_contents.append(1)
    with pytest.raises(InvalidArgument, match="unexpected 'content' provided when using shared memory"):
        await server.call("ModelInfer", request, ModelInferResponse)


@pytest.mark.parametrize(
    ("parameters", "status", "message"),
    [
        (window(12, 16), 400, "Expected 16, got 12"),
        (window(16, 64), 400, "Invalid offset for shared memory region: 'r'"),
        ({"shared_memory_region": "r"}, 400, "Expected 16, got 0"),
        ({**window(16), "shared_memory_region": "s"}, 404, "Unable to find shared memory region: 's'"),
        ({**window(16), "shared_memory_offset": -1}, 400, "Unable to parse 'shared_memory_offset'"),
        ({**window(16), "shared_memory_region": 1}, 400, "Unable to parse 'shared_memory_region'"),
        (
            {**window(16), "binary_data_size": 16},
            400,
            "But set 'binary_data_size' 'shared_memory_region': input 'x'",
        ),
    ],
)
async def test_a_wrong_window_over_rest_is_refused(
    server: AdministeredServer, shared: SharedObject, parameters: dict[str, object], status: int, message: str
) -> None:
    server.regions.register("r", shared.key, 0, 64)
    answer = await server.post("/v2/models/a/infer", infer_body(parameters=parameters))
    assert answer.status_code == status
    assert message in answer.json()["error"]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({**window(16), "classification": 1}, "Output can't set both 'shared_memory_region' and 'classification'"),
        ({**window(16), "binary_data": True}, "Output can't set both 'shared_memory_region' and 'binary_data'"),
        (window(8), "output 'y' (8 bytes) should be at least 16 bytes to hold the results"),
    ],
)
async def test_a_wrong_output_over_rest_is_refused(
    server: AdministeredServer, shared: SharedObject, output: dict[str, object], message: str
) -> None:
    server.regions.register("r", shared.key, 0, 64)
    answer = await server.post("/v2/models/a/infer", infer_body(output))
    assert answer.status_code == 400
    assert message in answer.json()["error"]


@pytest.mark.parametrize(
    ("parameters", "output", "message"),
    [
        ({"shared_memory_region": "r"}, {}, "'shared_memory_byte_size' must be specified along with"),
        ({"shared_memory_offset": 1}, {}, "'shared_memory_offset' can not be specified without"),
        ({**window(16), "shared_memory_region": 1}, {}, "for tensor 'x', expected string_param."),
        ({**window(16), "shared_memory_byte_size": "1"}, {}, "for tensor 'x', expected int64_param."),
        ({**window(-1)}, {}, "invalid value for 'shared_memory_byte_size' of tensor 'x', expected >= 0"),
        (window(16), {**window(16), "classification": 1}, "Output can't set both"),
    ],
)
async def test_a_wrong_window_over_grpc_is_refused(
    server: AdministeredServer, parameters: dict[str, object], output: dict[str, object], message: str
) -> None:
    with pytest.raises(ServingError) as caught:
        await server.call("ModelInfer", infer_message(parameters, output), ModelInferResponse)
    assert message in caught.value.message


async def test_the_server_lists_the_extension(server: AdministeredServer) -> None:
    assert "system_shared_memory" in (await server.get("/v2")).json()["extensions"]
