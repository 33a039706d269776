"""Tests for the behaviour that all executors share."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.support.device_programs import double_and_add, write_programs
from tpuserve_formats.mesh_shape import MeshShape
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.core.terms.errors import ServingError
from tpuserve_server.core.terms.servable import Executor, Servable, VersionFiles
from tpuserve_server.core.terms.types import ServableId, Tensors
from tpuserve_server.executors.pjrt import Device, PjrtOptions
from tpuserve_server.executors.pjrt.executor import PjrtExecutor
from tpuserve_server.observe.metrics.measurements import DeviceMeasurements

PJRT = ("pjrt", "mesh", "accelerator")

# `mesh` needs eight virtual CPU devices: pjrt/test_mesh.py runs this file in such a process. `accelerator` needs
# JAX_PLATFORMS=tpu,cpu or cuda,cpu, and -m accelerator. It does not need TensorFlow.
MESH = MeshShape(data=4, model=2)
KINDS = [
    "tensorflow",
    "tflite",
    "openvino",
    "pjrt",
    *(["mesh"] if os.environ.get("JAX_NUM_CPU_DEVICES") == "8" else []),
]


@pytest.fixture(params=[*KINDS, pytest.param("accelerator", marks=pytest.mark.accelerator)])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def executor(kind: str) -> Executor:
    if kind == "accelerator" and jax.default_backend() == "cpu":
        pytest.skip("no TPU or GPU")
    if kind in PJRT:
        device: Device = "auto" if kind == "accelerator" else "cpu"
        options = PjrtOptions(device, MESH if kind == "mesh" else MeshShape())
        return PjrtExecutor(options, no_host, DeviceMeasurements(), SystemClock())
    from tests.server.executors import tensorflow_kinds

    return tensorflow_kinds.executor(kind)


def no_host() -> Executor:
    raise AssertionError("nothing here needs TensorFlow")


@pytest.fixture
def version(kind: str, tmp_path: Path) -> Path:
    if kind in PJRT:
        return write_programs(tmp_path / "1", double_and_add())
    from tests.server.executors import tensorflow_kinds

    return tensorflow_kinds.version(kind, tmp_path / "1")


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
    file = {"tflite": "model.tflite", "tensorflow": "saved_model.pb", "openvino": "saved_model.pb"}.get(
        kind, "assets.extra/tpuserve/manifest.json"
    )
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ServingError) as caught:
        load(executor, tmp_path)
    assert str(tmp_path) not in caught.value.message
    assert caught.value.message
    assert "\n" not in caught.value.message
