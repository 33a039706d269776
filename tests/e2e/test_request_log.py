"""The log of requests, as an operator turns it on: what clients asked, written, and good for warm-up."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import json_format
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

from tests.e2e.conftest import HOSTS
from tests.e2e.running_server import RunningServer, run_server
from tpuserve_client import Client

ROWS = np.array([[1, 2], [3, 4]], np.float32)


def predict_both_ways(server: RunningServer) -> None:
    for address in (server.grpc, server.rest):
        with Client(address) as client:
            client.predict(server.model, {"x": ROWS})


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("host", HOSTS)
def test_grpc_and_rest_requests_are_logged_alike(host: str, calculator: Path, tmp_path: Path) -> None:
    flag = f"--request_log_path_prefix={tmp_path}/requests"
    with run_server(host, calculator, tmp_path / "log", flag) as server:
        predict_both_ways(server)
        assert server.terminate() == 0
    (path,) = tmp_path.glob("requests-m-*.jsonl")
    logs = [json_format.Parse(line, PredictionLog()) for line in path.read_text().splitlines()]
    assert len(logs) == 2
    for log in logs:
        assert log.log_metadata.model_spec.version.value == 3
        assert log.log_metadata.sampling_config.sampling_rate == 1
        np.testing.assert_array_equal(tf.make_ndarray(log.predict_log.request.inputs["x"]), ROWS)
        np.testing.assert_array_equal(tf.make_ndarray(log.predict_log.response.outputs["y"]), 2 * ROWS)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_logged_requests_are_warm_up_records(calculator: Path, tmp_path: Path) -> None:
    base = tmp_path / "m"
    shutil.copytree(calculator, base)
    flags = (f"--request_log_path_prefix={tmp_path}/requests", "--request_log_format=tfrecord")
    with run_server("python", base, tmp_path / "log", *flags) as server:
        predict_both_ways(server)
        assert server.terminate() == 0
    (path,) = tmp_path.glob("requests-m-*.tfrecord")
    records = base / "3" / "assets.extra" / "tf_serving_warmup_requests"
    with run_server("python", base, tmp_path / "cold.log") as server:
        cold = warm_up_runs(server)
    shutil.copy(path, records)
    with run_server("python", base, tmp_path / "warm.log") as server:
        assert warm_up_runs(server) == cold + 2


def warm_up_runs(server: RunningServer) -> int:
    with Client(server.grpc) as client:
        client.wait_until_ready(60, server.model)
    import httpx

    (model,) = httpx.get(f"{server.rest}/v1/models").json()["models"]
    (note,) = [note for note in model["versions"][0]["notes"] if note.startswith("warm-up: ")]
    return int(note.split()[1])
