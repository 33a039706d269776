"""Tests for reloads that change models, versions and labels of a running server."""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_status_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)
from tensorflow_serving.config import model_server_config_pb2

from tests.e2e.running_server import EXECUTABLE, RunningServer, run_configured_server
from tests.support.free_ports import free_ports
from tests.support.saved_models import save_function, write_manifest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group(__name__)]
PATIENCE_S = 60


def publish(base_path: Path, version: int, *, broken: bool = False) -> Path:
    """Publish y = version * x atomically.

    With `broken`, publish a model that cannot load although its manifest matches.
    """
    hidden = base_path.parent / f".{base_path.name}.{version}"
    spec = tf.TensorSpec([None], tf.float32, "x")
    save_function(hidden, lambda x: {"y": x * tf.constant(float(version))}, spec)
    if broken:
        (hidden / "saved_model.pb").write_bytes(b"no model")
    write_manifest(hidden)
    base_path.mkdir(exist_ok=True)
    return hidden.rename(base_path / str(version))


class Operator:
    """Official stubs for one server, and a directory of models."""

    def __init__(self, server: RunningServer, root: Path) -> None:
        self.server = server
        self.root = root
        self._channel = grpc.insecure_channel(server.grpc)
        self._models = model_service_pb2_grpc.ModelServiceStub(self._channel)
        self._predictions = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def model(self, name: str, versions: tuple[int, ...] = (), **fields: object) -> model_server_config_pb2.ModelConfig:
        config = model_server_config_pb2.ModelConfig(
            name=name, base_path=str(self.root / name), model_platform="tensorflow", **fields
        )
        config.model_version_policy.specific.versions.extend(versions)
        if not versions:
            config.ClearField("model_version_policy")
        return config

    def reload(self, *models: model_server_config_pb2.ModelConfig) -> model_management_pb2.ReloadConfigResponse:
        request = model_management_pb2.ReloadConfigRequest()
        request.config.model_config_list.config.extend(models)
        response: model_management_pb2.ReloadConfigResponse = self._models.HandleReloadConfigRequest(
            request, timeout=PATIENCE_S
        )
        return response

    def refusal(self, call: Callable[[], object]) -> tuple[str, str]:
        with pytest.raises(grpc.RpcError) as caught:
            call()
        return caught.value.code().name, caught.value.details() or ""

    def predict(self, name: str, *, label: str = "", version: int = 0) -> int:
        """Return the version that served the request, which the output identifies."""
        request = predict_pb2.PredictRequest()
        request.model_spec.name = name
        if label:
            request.model_spec.version_label = label
        if version:
            request.model_spec.version.value = version
        request.inputs["x"].CopyFrom(tf.make_tensor_proto(np.ones(1, np.float32)))
        response = self._predictions.Predict(request, timeout=PATIENCE_S)
        answer = int(response.outputs["y"].float_val[0])
        assert response.model_spec.version.value == answer
        return answer

    def states(self, name: str) -> dict[int, str]:
        request = get_model_status_pb2.GetModelStatusRequest()
        request.model_spec.name = name
        try:
            response = self._models.GetModelStatus(request, timeout=PATIENCE_S)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return {}
            raise
        state = get_model_status_pb2.ModelVersionStatus.State
        return {status.version: state.Name(status.state) for status in response.model_version_status}

    def wait_for(self, name: str, version: int, state: str) -> None:
        wait_for(lambda: self.states(name).get(version) == state)


def wait_for(is_so: Callable[[], bool]) -> None:
    """Poll until the condition holds, because the server sends no notification."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@dataclass
class Started:
    """A server whose initial configuration had a model that cannot load, and its first reports of that model."""

    server: RunningServer
    labelled: int
    states_of_bad: dict[int, str]
    models: dict[str, Any]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    root = tmp_path_factory.mktemp("reload")
    publish(root / "good", 1)
    publish(root / "bad", 1, broken=True)
    config = root / "models.config"
    config.write_text(
        "model_config_list {"
        + "".join(
            f'config {{ name: "{name}" base_path: "{root / name}" model_platform: "tensorflow" {labels} }}'
            for name, labels in [("good", 'version_labels { key: "stable" value: 1 }'), ("bad", "")]
        )
        + "}"
    )
    flags = (
        f"--model_config_file={config}",
        "--load_retry_interval_micros=0",
        "--allow_reload_without_models",
        f"--reload_roots={tmp_path_factory.getbasetemp()}",
    )
    with run_configured_server(root / "log", *flags, model="good") as server:
        operator = Operator(server, root)
        labelled = operator.predict("good", label="stable")
        operator.wait_for("bad", 1, "END")
        with httpx.Client(base_url=server.rest, timeout=PATIENCE_S) as rest:
            wait_for(lambda: rest.get("/readyz").status_code == 200)
            models = {model["name"]: model for model in rest.get("/v1/models").json()["models"]}
        yield Started(server, labelled, operator.states("bad"), models)
        operator.close()
        assert server.terminate() == 0


@pytest.fixture
def operator(started: Started, tmp_path: Path) -> Iterator[Operator]:
    """Yield an operator of the server with only version 1 of `m`."""
    publish(tmp_path / "m", 1)
    operator = Operator(started.server, tmp_path)
    # Remove the `m` of an earlier test first: a reload does not wait for existing models, as upstream.
    operator.reload()
    wait_for(lambda: set(operator.states("m").values()) <= {"END"})
    operator.reload(operator.model("m"))
    yield operator
    operator.close()


def test_a_model_that_cannot_be_loaded_does_not_block_the_others(started: Started) -> None:
    assert started.labelled == 1
    assert started.states_of_bad == {1: "END"}
    assert "TensorFlow cannot load the SavedModel" in started.models["bad"]["versions"][0]["error"]


def test_a_reload_adds_a_model_moves_a_label_and_removes_a_model(operator: Operator) -> None:
    publish(operator.root / "n", 4)
    publish(operator.root / "m", 2)
    both = operator.model("m", (1, 2), version_labels={"stable": 1, "canary": 2})
    assert operator.reload(both, operator.model("n")).status.error_code == 0
    assert operator.predict("n") == 4
    assert (operator.predict("m", label="stable"), operator.predict("m", label="canary")) == (1, 2)
    with httpx.Client(base_url=operator.server.rest, timeout=PATIENCE_S) as rest:
        answer = rest.post("/v1/models/m/labels/stable:predict", json={"inputs": [3.0]})
        assert answer.json() == {"outputs": [3.0]}
        listed = {model["name"] for model in rest.get("/v1/models").json()["models"]}
        assert listed == {"m", "n"}

    publish(operator.root / "m", 3)
    operator.reload(operator.model("m", (2, 3), version_labels={"stable": 3}))
    assert (operator.predict("m", label="stable"), operator.predict("m", version=2)) == (3, 2)
    operator.wait_for("m", 1, "END")
    assert operator.refusal(lambda: operator.predict("m", label="canary")) == (
        "INVALID_ARGUMENT",
        "Unrecognized servable version label: canary",
    )
    operator.wait_for("n", 4, "END")
    assert operator.refusal(lambda: operator.predict("n")) == (
        "NOT_FOUND",
        "Servable not found for request: Latest(n)",
    )


def test_a_reload_that_is_refused_or_fails_keeps_what_serves(operator: Operator) -> None:
    twice = [operator.model("n"), operator.model("n")]
    assert operator.refusal(lambda: operator.reload(*twice)) == (
        "INVALID_ARGUMENT",
        "Illegal to list model n multiple times in config list",
    )
    labelled = operator.model("m", version_labels={"stable": 9})
    assert operator.refusal(lambda: operator.reload(labelled)) == (
        "FAILED_PRECONDITION",
        "Request to assign label to version 9 of model m, which is not currently available for inference",
    )
    publish(operator.root / "n", 1, broken=True)
    code, message = operator.refusal(lambda: operator.reload(operator.model("m"), operator.model("n")))
    assert code == "UNKNOWN"
    assert "1 model(s) did not become available: {{{name: n version: 1} due to error: " in message
    assert "TensorFlow cannot load the SavedModel" in message
    assert operator.predict("m") == 1
    assert operator.states("n")[1] == "END"


@pytest.mark.parametrize(
    ("name", "base_path", "prefix", "expected"),
    [
        ("new", "/etc", None, "PERMISSION_DENIED"),
        ("new", "{root}/../../../../etc", None, "PERMISSION_DENIED"),
        ("new", "{root}/link", None, "PERMISSION_DENIED"),
        ("new", "s3://bucket/n", None, "PERMISSION_DENIED"),
        ("new", "foo://%zz", None, "PERMISSION_DENIED"),
        ("new", "{root}/m", "{root}/new/log", "PERMISSION_DENIED"),
        ("n\nERROR", "{root}/m", None, "INVALID_ARGUMENT"),
        ("n" * 10_000, "{root}/m", None, "INVALID_ARGUMENT"),
        ("new", "{root}/m\0", None, "INVALID_ARGUMENT"),
    ],
)
def test_a_reload_with_a_path_or_name_that_is_not_allowed_creates_nothing(
    operator: Operator, name: str, base_path: str, prefix: str | None, expected: str
) -> None:
    (operator.root / "link").symlink_to("/etc")
    before = sorted(operator.root.rglob("*"))
    new = operator.model("m")
    new.name, new.base_path = name, base_path.format(root=operator.root)
    if prefix is not None:
        new.logging_config.log_collector_config.filename_prefix = prefix.format(root=operator.root)
        new.logging_config.sampling_config.sampling_rate = 1
    code, message = operator.refusal(lambda: operator.reload(operator.model("m"), new))
    assert code == expected
    assert "Traceback" not in message
    assert len(message) < 500
    assert operator.predict("m") == 1
    assert operator.states(name) == {}
    assert sorted(operator.root.rglob("*")) == before


def test_the_start_logs_the_rule_for_control(started: Started) -> None:
    assert (
        "accepts control requests (reload, load, unload, profile) only from loopback" in started.server.log.read_text()
    )


def test_a_deleted_version_falls_back_and_a_mended_one_is_tried_again(operator: Operator) -> None:
    publish(operator.root / "m", 2)
    operator.wait_for("m", 2, "AVAILABLE")
    operator.wait_for("m", 1, "END")
    shutil.rmtree(operator.root / "m" / "2")
    operator.wait_for("m", 1, "AVAILABLE")
    operator.wait_for("m", 2, "END")
    assert operator.predict("m") == 1

    broken = publish(operator.root / "m", 4, broken=True)
    operator.wait_for("m", 4, "END")
    assert operator.predict("m") == 1
    shutil.copytree(publish(operator.root / "mended", 4), broken, dirs_exist_ok=True)
    operator.wait_for("m", 4, "AVAILABLE")

    for version in (1, 4):
        shutil.rmtree(operator.root / "m" / str(version))
    operator.wait_for("m", 4, "END")
    with httpx.Client(base_url=operator.server.rest, timeout=PATIENCE_S) as rest:
        wait_for(lambda: rest.get("/readyz").status_code == 503)
    operator.root.joinpath("m").rename(operator.root / "away")
    publish(operator.root / "m", 7)
    operator.wait_for("m", 7, "AVAILABLE")


def test_a_server_that_can_serve_nothing_ends_and_says_why(tmp_path: Path) -> None:
    publish(tmp_path / "m", 1, broken=True)
    grpc_port, rest_port = free_ports(2)
    ended = subprocess.run(
        [
            EXECUTABLE, "--model_name=m", f"--model_base_path={tmp_path / 'm'}",
            f"--port={grpc_port}", f"--rest_api_port={rest_port}", "--bind_address=127.0.0.1",
        ],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 1
    # A damaged file is no reason to wait for retries.
    assert ended.stderr.count("Loading {name: m version: 1} failed") == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("tpuserve: 1 servable(s) did not become available: {{{name: m version: 1} due to error: ")
    assert "TensorFlow cannot load the SavedModel" in last
    assert last.endswith("}, }")
    assert "Traceback" not in ended.stderr
