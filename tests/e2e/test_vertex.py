"""Tests for Vertex AI's contract: AIP_* variables alone, with the artifact in a store, and a cache."""

import json
from collections.abc import Iterator

import httpx
import numpy as np
import pytest

from tests.e2e.running_server import RunningServer, run_in_environment
from tests.support.free_ports import free_ports
from tests.support.object_stores import running_store
from tests.support.saved_models import save_mlp, write_manifest
from tpuserve_client import Client

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group(__name__)]

HEALTH = "/v1/endpoints/12/deployedModels/34"
PREDICT = f"{HEALTH}:predict"
ROW = [[0.5] * 64]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("vertex")
    model = save_mlp(folder / "model")
    write_manifest(model)
    ports = free_ports(2)
    with running_store("gs", folder / "store") as store:
        store.put_folder(model, "artifact")
        environment = {
            "AIP_HTTP_PORT": str(ports[1]),
            "AIP_HEALTH_ROUTE": HEALTH,
            "AIP_PREDICT_ROUTE": PREDICT,
            "AIP_STORAGE_URI": store.uri("artifact"),
            "AIP_MODE": "PREDICTION",
            # The image sets the same values.
            "MODEL_NAME": "model",
            "MODEL_BASE_PATH": str(folder / "models"),
        }
        flags = (f"--storage_cache_dir={folder / 'cache'}", "--response_cache_max_bytes=1000000")
        log = folder / "log"
        with run_in_environment(log, ports, environment, *flags, model="model") as server:
            yield server


def test_the_platforms_requests_are_answered(server: RunningServer) -> None:
    with httpx.Client(base_url=server.rest) as client, Client(server.grpc) as grpc:
        assert client.get(HEALTH).status_code == 200
        answer = client.post(PREDICT, json={"instances": ROW, "parameters": {"signature_name": "serving_default"}})
        assert answer.status_code == 200
        assert answer.headers["x-tpuserve-model-version"] == "1"
        expected = grpc.predict("model", {"x": np.array(ROW, np.float32)})["y"]
        np.testing.assert_array_equal(np.array(answer.json()["predictions"], np.float32), expected)
        refused = client.post(PREDICT, json={"instances": ROW, "parameters": {"top_k": 3}})
        assert (refused.status_code, refused.json()) == (
            400,
            {"error": "'parameters' may hold only 'signature_name'; it also holds 'top_k'"},
        )
        assert client.get("/v1/models/model").status_code == 200


def test_raw_inference_requests_are_answered_by_the_open_inference_protocol(server: RunningServer) -> None:
    x = np.array(ROW, np.float32)
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 64]}
    text = json.dumps(
        {
            "inputs": [{**tensor, "parameters": {"binary_data_size": x.nbytes}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    media_type = f"application/vnd.vertex-ai-triton.binary+json;json-header-size={len(text)}"
    with httpx.Client(base_url=server.rest) as client, Client(server.grpc) as grpc:
        expected = grpc.predict("model", {"x": x})["y"]
        plain = client.post(PREDICT, json={"inputs": [{**tensor, "data": ROW}]})
        assert (plain.status_code, plain.headers["x-tpuserve-cache"]) == (200, "hit")
        (output,) = plain.json()["outputs"]
        assert (output["name"], output["datatype"]) == ("y", "FP32")
        np.testing.assert_array_equal(np.array(output["data"], np.float32), expected.ravel())
        binary = client.post(PREDICT, content=text + x.tobytes(), headers={"content-type": media_type})
        assert binary.status_code == 200
        data = binary.content[int(binary.headers["inference-header-content-length"]) :]
        assert data == expected.tobytes()
        refused = client.post(PREDICT, json={"inputs": [{**tensor, "name": "z", "data": ROW}]})
        assert (refused.status_code, [*refused.json()]) == (400, ["error"])
        assert client.get("/v2/models/model/config").json()["response_cache"] == {"enable": True}


def test_equal_requests_are_answered_from_the_cache(server: RunningServer) -> None:
    row = [[0.25] * 64]
    with httpx.Client(base_url=server.rest) as client, Client(server.grpc) as grpc:
        first, second = (client.post("/v1/models/model:predict", json={"instances": row}) for _ in range(2))
        assert [each.headers["x-tpuserve-cache"] for each in (first, second)] == ["miss", "hit"]
        assert first.content == second.content
        y = np.array(first.json()["predictions"], np.float32)
        np.testing.assert_array_equal(grpc.predict("model", {"x": np.array(row, np.float32)})["y"], y)
        page = client.get("/metrics").text
        assert 'tpuserve_response_cache_hits_total{model_name="model",version="1"}' in page
        notes = client.get("/v1/models").json()["models"][0]["versions"][0]["notes"]
        assert "response cache: up to 1000000 bytes of its model" in notes
