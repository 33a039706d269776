"""Tests for --openvino on a real server: trials that fail or end leave it running."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.e2e.running_server import run_server
from tests.support.saved_models import save_function
from tpuserve_client import Client

pytestmark = [pytest.mark.slow]

SPEC = tf.TensorSpec([None, 2], tf.float32, "x")


def no_conversion(x: tf.Tensor) -> dict[str, tf.Tensor]:
    """Halve `x` float32 [rows, 2] in bfloat16, whose constants OpenVINO does not read."""
    return {"y": tf.cast(tf.cast(x, tf.bfloat16) * tf.constant(0.5, tf.bfloat16), tf.float32)}


def test_trials_that_fail_or_end_leave_the_server_running(tmp_path: Path) -> None:
    base_path = tmp_path / "m"
    save_function(base_path / "1", no_conversion, SPEC)
    x = np.array([[2, 4]], np.float32)
    with run_server(base_path, tmp_path / "log", "--openvino=auto") as server:
        with Client(server.grpc) as client:
            assert client.predict("m", {"x": x})["y"].tolist() == [[1, 2]]
        assert "it cannot convert the model" in server.log.read_text()
        save_function(tmp_path / "hidden", lambda x: {"y": x * 3}, SPEC)
        shutil.move(tmp_path / "hidden", base_path / "2")
        with Client(server.grpc) as later:
            later.wait_until_ready(60, "m", version=2)
            assert later.predict("m", {"x": x})["y"].tolist() == [[6, 12]]
        # The trial has ended, whichever runtime is faster here.
        assert "times as fast as TensorFlow" in server.log.read_text()
        assert server.terminate() == 0
