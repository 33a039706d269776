"""Tests for --prefer_tflite_model through TensorFlow Serving's API."""

import shutil
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.e2e.running_server import RunningServer, run_server
from tests.support.saved_models import save_half_plus_two
from tests.support.tflite_models import half_plus_two, save
from tpuserve_client import Client

pytestmark = [pytest.mark.slow]


def test_the_tflite_model_is_served_and_after_it_a_version_with_a_saved_model_alone(tmp_path: Path) -> None:
    base_path = tmp_path / "half_plus_two"
    save(base_path / "1", half_plus_two())
    flags = ("--prefer_tflite_model=true", "--enable_batching", "--num_tflite_pools=2")
    with run_server(base_path, tmp_path / "log", *flags) as server, Client(server.grpc) as client:
        # TensorFlow Serving's names for the tensors of a model without SignatureDefs.
        x = np.array([[2], [4], [6]], np.float32)
        (y,) = client.predict("m", {"serving_default_x": x}).outputs.values()
        assert y.tolist() == [[3], [4], [5]]
        with Client(server.rest) as rest:
            assert rest.predict("m", {"serving_default_x": x}).version == 1
        assert "LiteRT" in server.log.read_text()
        assert not has_tensorflow(server)
        save_half_plus_two(tmp_path / "hidden")
        shutil.move(tmp_path / "hidden", base_path / "2")
        with Client(server.grpc) as later:
            later.wait_until_ready(60, "m", version=2)
            assert has_tensorflow(server)
            assert later.predict("m", {"x": x})["y"].tolist() == [[3], [4], [5]]
        assert server.terminate() == 0


def has_tensorflow(server: RunningServer) -> bool:
    """Return whether a process of the server has TensorFlow's library in memory."""
    process = psutil.Process(server.process.pid)
    return any("tensorflow" in each.path for one in (process, *process.children(True)) for each in one.memory_maps())
