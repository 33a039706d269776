"""Tests for a server whose models load at their first request, over every protocol."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
import tensorflow as tf

from tests.e2e.running_server import RunningServer, run_configured_server
from tests.support.saved_models import save_function, write_manifest
from tpuserve_client import Client

pytestmark = pytest.mark.xdist_group(__name__)

NAMES = ("rest", "oip", "grpc", "metadata", "labelled", "loaded", "stays", "broken")
NOT_LOADED = "not loaded: the next request for the model loads it"


@dataclass
class Fleet:
    """A server with one model for each name in NAMES, all on demand except `stays`."""

    server: RunningServer
    rest: httpx.Client

    def status(self, name: str) -> dict[str, object]:
        """Return the only version's state and message over TensorFlow Serving's API."""
        [version] = self.rest.get(f"/v1/models/{name}").json()["model_version_status"]
        return {"state": version["state"], "message": version["status"]["error_message"]}

    def index(self, name: str) -> tuple[str, str]:
        """Return the only version's state and reason in the repository index."""
        [entry] = [one for one in self.rest.post("/v2/repository/index").json() if one["name"] == name]
        return entry["state"], entry.get("reason", "")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    root = tmp_path_factory.mktemp("fleet")
    configs = []
    for name in NAMES:
        version = save_function(root / name / "1", lambda x: {"y": x / 2 + 2}, tf.TensorSpec([None], tf.float32, "x"))
        if name == "broken":
            (version / "saved_model.pb").write_bytes(b"no model")
        write_manifest(version)
        own = {"labelled": 'version_labels { key: "stable" value: 1 }', "stays": 'load_policy: "always"'}.get(name, "")
        configs.append(f'config {{ name: "{name}" base_path: "{root / name}" model_platform: "tensorflow" {own} }}')
    config_file = root / "models.config"
    config_file.write_text(f"model_config_list {{ {' '.join(configs)} }}")
    flags = (f"--model_config_file={config_file}", "--load_policy=on_demand")
    with (
        run_configured_server(root / "log", *flags, model="stays") as server,
        httpx.Client(base_url=server.rest, timeout=60) as rest,
    ):
        yield Fleet(server, rest)


def test_a_listed_model_is_not_loaded_and_not_failed(fleet: Fleet) -> None:
    assert fleet.status("rest") == {"state": "START", "message": NOT_LOADED}
    assert fleet.index("rest") == ("UNAVAILABLE", NOT_LOADED)
    assert fleet.status("stays")["state"] == "AVAILABLE"
    # It answers requests, so that it is ready, and so is the server.
    assert fleet.rest.get("/v2/models/rest/ready").status_code == 200
    assert fleet.rest.get("/v2/health/ready").status_code == 200


def test_the_first_request_over_rest_loads_the_model(fleet: Fleet) -> None:
    response = fleet.rest.post("/v1/models/rest:predict", json={"instances": [1.0, 2.0]})
    assert (response.status_code, response.json()) == (200, {"predictions": [2.5, 3.0]})
    assert fleet.status("rest") == {"state": "AVAILABLE", "message": ""}
    assert fleet.index("rest") == ("READY", "")


def test_the_first_request_over_the_open_inference_protocol_loads_the_model(fleet: Fleet) -> None:
    tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [4.0]}
    response = fleet.rest.post("/v2/models/oip/infer", json={"inputs": [tensor]})
    assert response.status_code == 200, response.text
    assert response.json()["outputs"][0]["data"] == [4.0]


def test_the_first_request_over_grpc_loads_the_model(fleet: Fleet) -> None:
    with Client(fleet.server.grpc) as client:
        assert client.predict("grpc", {"x": [2.0]})["y"].tolist() == [3.0]


@pytest.mark.parametrize("path", ["/v1/models/metadata/metadata", "/v2/models/metadata", "/v2/models/metadata/config"])
def test_metadata_loads_the_model(fleet: Fleet, path: str) -> None:
    response = fleet.rest.get(path)
    assert response.status_code == 200, response.text
    assert fleet.status("metadata")["state"] == "AVAILABLE"


def test_a_label_loads_the_model(fleet: Fleet) -> None:
    response = fleet.rest.post("/v1/models/labelled/labels/stable:predict", json={"instances": [1.0]})
    assert (response.status_code, response.json()) == (200, {"predictions": [2.5]})


def test_a_damaged_model_says_so_at_the_first_request(fleet: Fleet) -> None:
    response = fleet.rest.post("/v1/models/broken:predict", json={"instances": [1.0]})
    assert response.status_code == 404
    assert "It cannot be loaded: TensorFlow cannot load the SavedModel" in response.json()["error"]
    assert fleet.status("broken")["state"] == "END"
    state, reason = fleet.index("broken")
    assert state == "UNAVAILABLE"
    assert reason != NOT_LOADED


def test_triton_loads_and_unloads_a_model(fleet: Fleet) -> None:
    assert fleet.rest.post("/v2/repository/models/loaded/load").status_code == 200
    assert fleet.index("loaded") == ("READY", "")
    assert fleet.status("loaded")["state"] == "AVAILABLE"
    assert fleet.rest.post("/v2/repository/models/loaded/unload").status_code == 200
    # Until the next load, no request loads it.
    assert fleet.rest.post("/v1/models/loaded:predict", json={"instances": [1.0]}).status_code == 404


def test_metrics_count_loads_on_demand(fleet: Fleet) -> None:
    page = fleet.rest.get("/metrics").text
    found = re.search(r'tpuserve_model_memory_bytes\{model_name="stays",version="1"\} (\d+)', page)
    assert found is not None
    assert int(found[1]) > 0
