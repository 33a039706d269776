"""Tests for device programs through PJRT's CPU client on real servers. No TPU or GPU is needed."""

import json
import os
import subprocess
import urllib.request
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

from tests.e2e.running_server import EXECUTABLE, RunningServer, run_server
from tests.e2e.test_profiler import load
from tests.support.device_programs import Part, write_programs
from tests.support.free_ports import free_ports
from tests.support.saved_models import save_function
from tpuserve_client import Client

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def base_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save version 1: x (float [?, 2]) -> y = tanh(x w) as a program. Its SavedModel returns 0 instead."""
    path = tmp_path_factory.mktemp("programs") / "1"
    save_function(path, lambda x: {"y": x * 0}, tf.TensorSpec([None, 2], tf.float32, "x"))
    tensor = ("float32", (None, 2))
    weight = np.eye(2, dtype=np.float32)
    part = Part(lambda x, w: (jnp.tanh(x @ w),), {"x": tensor}, {"y": tensor}, {"w": weight})
    return write_programs(path, part).parent


def notes(server: RunningServer) -> list[str]:
    with urllib.request.urlopen(f"{server.rest}/v1/models") as response:
        (model,) = json.load(response)["models"]
    return list(model["versions"][0]["notes"])


def metrics(server: RunningServer) -> str:
    with urllib.request.urlopen(f"{server.rest}/metrics") as response:
        return str(response.read().decode())


def test_programs_answer_are_measured_and_are_in_the_profile(base_path: Path, tmp_path: Path) -> None:
    cache = tmp_path / "compiled"
    flags = ("--device=cpu", f"--compilation_cache_dir={cache}")
    with run_server(base_path, tmp_path / "log", *flags) as server:
        x = np.arange(6, dtype=np.float32).reshape(3, 2)
        with Client(server.grpc) as client:
            np.testing.assert_allclose(client.predict("m", {"x": x})["y"], np.tanh(x), atol=1e-6)
        assert notes(server)[0].startswith("device: CPU (PJRT, jax ")
        page = metrics(server)
        assert 'tpuserve_version_device{device="cpu",fallback="",model_name="m",version="1"} 1.0' in page
        assert "tpuserve_compile_seconds{" in page
        assert 'tpuserve_device_busy_seconds_total{device="cpu:0"}' in page
        with load(server):
            tf.profiler.experimental.client.trace(f"grpc://{server.grpc}", str(tmp_path / "trace"), 1000)
        (trace,) = (tmp_path / "trace").rglob("*.xplane.pb")
        space = XSpace.FromString(trace.read_bytes())
        names = {event.name for plane in space.planes for event in plane.event_metadata.values()}
        assert any("dot" in name or "tanh" in name for name in names)
        assert server.terminate() == 0
    # A cache entry for each of the three batch sizes.
    assert len(list(cache.iterdir())) >= 3
    assert cache.stat().st_mode & 0o077 == 0


def test_without_an_accelerator_auto_serves_the_saved_model_and_says_why(
    base_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    with run_server(base_path, tmp_path / "log") as server:
        with Client(server.grpc) as client:
            assert client.predict("m", {"x": np.ones((1, 2), np.float32)})["y"].tolist() == [[0, 0]]
        note = notes(server)[0]
        assert note.startswith("device: CPU (TensorFlow ")
        assert note.endswith(": PJRT found no TPU or GPU")
        assert 'fallback="no_device"' in metrics(server)


def test_a_device_that_was_asked_for_and_cannot_be_had_ends_the_server_with_the_reason(base_path: Path) -> None:
    command = [
        str(EXECUTABLE),
        "--model_name=m",
        f"--model_base_path={base_path}",
        "--device=tpu",
        "--max_num_load_retries=0",
    ]
    grpc_port, rest_port = free_ports(2)
    ended = subprocess.run(
        [*command, f"--port={grpc_port}", f"--rest_api_port={rest_port}"],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ended.returncode == 1
    assert "--device=tpu: PJRT found only cpu" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr
