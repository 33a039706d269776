"""Tests for the request log: it records requests, and its records work as warm-up records."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import json_format
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

from tests.e2e.running_server import run_configured_server, run_server
from tpuserve_client import Client

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group(__name__)]

ROWS = np.array([[1, 2], [3, 4]], np.float32)


@dataclass
class Logged:
    """The files of a server after one gRPC and one REST request to each of its two models."""

    folder: Path
    base_path: Path

    def check(self, logs: list[PredictionLog]) -> None:
        """Check that the log contains both requests and their responses."""
        assert len(logs) == 2
        for log in logs:
            assert log.log_metadata.model_spec.version.value == 3
            assert log.log_metadata.sampling_config.sampling_rate == 1
            np.testing.assert_array_equal(tf.make_ndarray(log.predict_log.request.inputs["x"]), ROWS)
            np.testing.assert_array_equal(tf.make_ndarray(log.predict_log.response.outputs["y"]), 2 * ROWS)


@pytest.fixture(scope="module")
def logged(calculator: Path, tmp_path_factory: pytest.TempPathFactory) -> Logged:
    """Log `m` through the flag for all models, and `own` through its configuration, in TensorFlow Serving's format."""
    folder = tmp_path_factory.mktemp("logged")
    config = folder / "models.config"
    config.write_text(f"""
        model_config_list {{
          config {{ name: "m" base_path: "{calculator}" model_platform: "tensorflow" }}
          config {{
            name: "own" base_path: "{calculator}" model_platform: "tensorflow"
            logging_config {{
              log_collector_config {{ type: "tfrecord" filename_prefix: "{folder}/logged" }}
              sampling_config {{ sampling_rate: 1.0 }}
            }}
          }}
        }}""")
    flags = (f"--model_config_file={config}", f"--request_log_path_prefix={folder}/requests")
    with run_configured_server(folder / "log", *flags, model="own") as server:
        for address in (server.grpc, server.rest):
            with Client(address) as client:
                for model in ("m", "own"):
                    client.wait_until_ready(60, model)
                    client.predict(model, {"x": ROWS})
        assert server.terminate() == 0
    return Logged(folder, calculator)


def test_grpc_and_rest_requests_are_logged_alike(logged: Logged) -> None:
    (path,) = logged.folder.glob("requests-m-*.jsonl")
    logged.check([json_format.Parse(line, PredictionLog()) for line in path.read_text().splitlines()])


def test_a_models_own_configuration_says_where_and_how_it_is_logged(logged: Logged) -> None:
    (path,) = logged.folder.glob("logged*")
    records = tf.compat.v1.io.tf_record_iterator(str(path))
    logged.check([PredictionLog.FromString(record) for record in records])
    assert not list(logged.folder.glob("requests-own-*"))


def test_logged_requests_are_warm_up_records(logged: Logged, tmp_path: Path) -> None:
    base = tmp_path / "own"
    shutil.copytree(logged.base_path, base)
    (path,) = logged.folder.glob("logged*")
    records = base / "3" / "assets.extra" / "tf_serving_warmup_requests"
    shutil.copy(path, records)
    with run_server(base, tmp_path / "warm.log", model="own") as server:
        assert "2 recorded requests, " in server.log.read_text()
