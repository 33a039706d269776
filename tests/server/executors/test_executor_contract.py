"""Tests for the behaviour that all executors share."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest
import tensorflow as tf

from tests.support import device_programs
from tests.support.device_programs import write_programs
from tests.support.saved_models import save_function
from tests.support.tflite_models import convert, save
from tpuserve_formats.mesh_shape import MeshShape
from tpuserve_server.core.deadline import SystemClock
from tpuserve_server.core.errors import FailedPrecondition, ServingError
from tpuserve_server.core.host_memory import HostMemory
from tpuserve_server.core.servable import Executor, Servable, VersionFiles
from tpuserve_server.core.types import ServableId, Tensors
from tpuserve_server.executors.choice import ExecutorChoice
from tpuserve_server.executors.pjrt.executor import PjrtExecutor
from tpuserve_server.executors.pjrt.options import Device, PjrtOptions
from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor
from tpuserve_server.executors.tensorflow.on_demand import TensorFlowOnDemand
from tpuserve_server.executors.tensorflow.options import TensorFlowOptions
from tpuserve_server.executors.tflite.candidate import PreferredTflite
from tpuserve_server.executors.tflite.options import TfliteOptions
from tpuserve_server.metrics.device_measurements import DeviceMeasurements

PJRT = ("pjrt", "mesh", "accelerator")
SPEC = tf.TensorSpec([None, 2], tf.float32, "x")


def double_and_add(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"double": x * 2, "added": x + 1}


# `mesh` needs eight virtual CPU devices: pjrt/test_mesh.py runs this file in such a process. `accelerator` needs
# JAX_PLATFORMS=tpu,cpu or cuda,cpu, and -m accelerator.
MESH = MeshShape(data=4, model=2)
KINDS = ["tensorflow", "tflite", "pjrt", *(["mesh"] if os.environ.get("JAX_NUM_CPU_DEVICES") == "8" else [])]


@pytest.fixture(params=[*KINDS, pytest.param("accelerator", marks=pytest.mark.accelerator)])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def executor(kind: str) -> Executor:
    tensorflow = TensorFlowExecutor(TensorFlowOptions())
    if kind == "accelerator" and jax.default_backend() == "cpu":
        pytest.skip("no TPU or GPU")
    if kind in PJRT:
        device: Device = "auto" if kind == "accelerator" else "cpu"
        options = PjrtOptions(device, MESH if kind == "mesh" else MeshShape())
        return PjrtExecutor(options, lambda: tensorflow, DeviceMeasurements(), SystemClock())
    return preferring_tflite() if kind == "tflite" else tensorflow


def preferring_tflite() -> Executor:
    tflite = PreferredTflite(TfliteOptions(preferred=True, max_interpreters=2, num_threads=1), HostMemory())
    return ExecutorChoice((tflite, TensorFlowOnDemand(TensorFlowOptions(), HostMemory())), DeviceMeasurements())


@pytest.fixture
def version(kind: str, tmp_path: Path) -> Path:
    if kind in PJRT:
        return write_programs(tmp_path / "1", device_programs.double_and_add())
    if kind == "tensorflow":
        return save_function(tmp_path / "1", double_and_add, SPEC)
    return save(tmp_path / "1", convert(named=(double_and_add, SPEC)))


@pytest.fixture
def signature(kind: str) -> str:
    return "named" if kind == "tflite" else "serving_default"


def load(executor: Executor, path: Path) -> Servable:
    return executor.load(ServableId("m", 1), VersionFiles(path, allows_bfloat16=True))


def run(servable: Servable, signature: str, inputs: Tensors, *outputs: str) -> Tensors:
    return servable.dispatch(signature, inputs, outputs).result()


def test_signatures_have_names_dtypes_and_free_rows(
    executor: Executor, version: Path, signature: str, kind: str
) -> None:
    servable = load(executor, version)
    found = servable.signatures[signature]
    assert found.name == signature
    (x,) = found.inputs.values()
    assert (x.name, x.dtype, x.shape) == ("x", np.dtype(np.float32), (None, 2))
    assert list(found.outputs) == ["added", "double"]
    assert found.is_batchable
    device = {"mesh": "CPU, mesh data=4,model=2 (", "accelerator": ""}.get(kind, "CPU (")
    assert servable.device.startswith(device)
    servable.close()


def test_any_number_of_rows_runs_and_only_asked_outputs_come(executor: Executor, version: Path, signature: str) -> None:
    servable = load(executor, version)
    for rows in (1, 5, 5, 0, 2):
        x = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
        outputs = run(servable, signature, {"x": x}, "double")
        assert outputs.keys() == {"double"}
        np.testing.assert_array_equal(outputs["double"], x * 2)
        assert outputs["double"].dtype == np.float32
    servable.close()


def test_inputs_may_be_read_only_or_strided_and_outputs_are_the_callers(
    executor: Executor, version: Path, signature: str
) -> None:
    servable = load(executor, version)
    frozen = np.frombuffer(np.ones((1, 2), np.float32).tobytes(), np.float32).reshape(1, 2)
    first = run(servable, signature, {"x": frozen}, "double")["double"]
    strided = np.arange(8, dtype=np.float32).reshape(2, 4)[:, ::2]
    assert run(servable, signature, {"x": strided}, "added")["added"].tolist() == [[1, 3], [5, 7]]
    run(servable, signature, {"x": np.zeros((1, 2), np.float32)}, "double")
    assert first.tolist() == [[2, 2]]
    servable.close()


def test_several_threads_may_dispatch_at_once(executor: Executor, version: Path, signature: str) -> None:
    servable = load(executor, version)
    start = threading.Barrier(4)

    def ask(number: int) -> bool:
        x = np.full((number + 1, 2), number, np.float32)
        start.wait(timeout=120)
        return all(
            (run(servable, signature, {"x": x}, name)[name] == expected).all()
            for _ in range(50)
            for name, expected in (("double", x * 2), ("added", x + 1))
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, range(4)))
    servable.close()


@pytest.mark.parametrize("content", [b"", b"neither a flatbuffer nor a protocol buffer, at some length"])
def test_a_broken_model_fails_in_one_line_without_a_path(
    executor: Executor, kind: str, tmp_path: Path, content: bytes
) -> None:
    file = {"tflite": "model.tflite", "tensorflow": "saved_model.pb"}.get(kind, "assets.extra/tpuserve/manifest.json")
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ServingError) as caught:
        load(executor, tmp_path)
    assert str(tmp_path) not in caught.value.message
    assert caught.value.message
    assert "\n" not in caught.value.message


def test_tflite_is_preferred_where_it_is_and_the_saved_model_taken_where_not(tmp_path: Path) -> None:
    path = save_function(tmp_path / "1", double_and_add, SPEC)
    executor = preferring_tflite()
    assert "TensorFlow" in load(executor, path).device
    (path / "model.tflite").write_bytes(convert(named=(double_and_add, SPEC)))
    assert "LiteRT" in load(executor, path).device


def test_without_litert_the_load_says_which_extra_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("executor", "model", "signatures"):
        monkeypatch.delitem(sys.modules, f"tpuserve_server.executors.tflite.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    executor = preferring_tflite()
    with pytest.raises(FailedPrecondition, match=r"pip install 'tpuserve-server\[tflite\]'"):
        load(executor, save(tmp_path / "1", b"x"))
