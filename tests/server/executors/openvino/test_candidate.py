"""Tests for the choice between TensorFlow and OpenVINO at the load of a version."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.server.executors.tensorflow_kinds import SPEC, double_and_add, with_openvino
from tests.support.fake_device import RecordingMetrics
from tests.support.saved_models import save_function, save_mlp, write_manifest
from tpuserve_server.core.batching.services import DeviceServices
from tpuserve_server.core.models.loader import AspiredVersion
from tpuserve_server.core.models.local_storage import LocalStorage
from tpuserve_server.core.system.memory import HostMemory
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.servable import Servable, VersionFiles
from tpuserve_server.core.terms.storage import VersionLocation
from tpuserve_server.core.terms.types import ServableId, Tensors
from tpuserve_server.executors.openvino import OpenVinoOptions
from tpuserve_server.executors.openvino.candidate import TensorFlowOrOpenVino
from tpuserve_server.executors.tensorflow import TensorFlowOptions
from tpuserve_server.executors.tensorflow.on_demand import TensorFlowOnDemand
from tpuserve_server.versions.loading import LoadingOptions, VersionLoader
from tpuserve_server.versions.manifest import missing_file

NEVER = float("inf")
TABLE = tf.constant(np.arange(30, dtype=np.float32).reshape(10, 3))


def load(path: Path, least_gain: float = 0) -> Servable:
    return with_openvino(least_gain=least_gain).load(ServableId("m", 1), VersionFiles(path))


def run(servable: Servable, inputs: Tensors, signature: str = "serving_default") -> Tensors:
    return servable.dispatch(signature, inputs, tuple(servable.signatures[signature].outputs)).result()


def test_openvino_serves_a_version_if_it_is_fast_enough_and_tensorflow_if_not(tmp_path: Path) -> None:
    path = save_mlp(tmp_path / "1")
    x = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    slow, fast = load(path, NEVER), load(path)
    assert slow.device.startswith("CPU (TensorFlow ")
    assert "not OpenVINO: it is " in slow.device
    assert "times as fast as TensorFlow; inf is needed" in slow.device
    assert fast.device.startswith("CPU (OpenVINO ")
    np.testing.assert_allclose(run(fast, {"x": x})["y"], run(slow, {"x": x})["y"], rtol=1e-4, atol=1e-5)
    slow.close()
    fast.close()


def asserted(x: tf.Tensor) -> dict[str, tf.Tensor]:
    with tf.control_dependencies([tf.raw_ops.Assert(condition=tf.reduce_all(x > -9), data=[x])]):
        return {"y": x * 2}


REFUSED: Mapping[str, tuple[Callable[..., Mapping[str, tf.Tensor]], tf.TensorSpec, str]] = {
    "strings": (
        lambda x: {"y": tf.strings.length(x)},
        tf.TensorSpec([None], tf.string, "x"),
        "input 'x' is string",
    ),
    "64-bit numbers, of which OpenVINO keeps 32 bits": (
        lambda x: {"y": tf.cast(x, tf.int64) + 2**40},
        SPEC,
        "output 'y' is int64",
    ),
    "assertions, which OpenVINO drops": (asserted, SPEC, "the operation Assert is not among"),
    "indices out of range, which OpenVINO accepts": (
        lambda x: {"y": tf.gather(TABLE, tf.cast(x, tf.int32))},
        SPEC,
        "the operation GatherV2 is not among",
    ),
    "random numbers": (lambda x: {"y": x + tf.random.uniform([2])}, SPEC, "which has state or is random"),
    "several free dimensions": (
        lambda x: {"y": x * 2},
        tf.TensorSpec([None, None], tf.float32, "x"),
        "input 'x' has a free dimension after the first",
    ),
    "operations without a conversion": (
        lambda x: {"y": tf.cast(tf.cast(x, tf.bfloat16) * tf.constant(0.5, tf.bfloat16), tf.float32)},
        SPEC,
        "not OpenVINO: it cannot convert the model: ",
    ),
    "other answers": (lambda x: {"y": tf.cast(x * 1e5, tf.uint8)}, SPEC, "its output 'y' differs for 1 rows"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_tensorflow_serves_what_openvino_would_answer_otherwise(tmp_path: Path, case: str) -> None:
    function, spec, reason = REFUSED[case]
    servable = load(save_function(tmp_path / "1", function, spec))
    assert servable.device.startswith("CPU (TensorFlow ")
    assert reason in servable.device
    servable.close()


def test_lookups_of_constant_dimensions_are_no_reason_against_openvino(tmp_path: Path) -> None:
    path = save_function(tmp_path / "1", lambda x: {"y": tf.gather(x, [1, 0], axis=1)}, SPEC)
    servable = load(path)
    assert servable.device.startswith("CPU (OpenVINO ")
    assert run(servable, {"x": np.array([[1, 2]], np.float32)})["y"].tolist() == [[2, 1]]
    servable.close()


def test_the_trial_has_the_batch_sizes_and_the_tolerance_of_the_manifest(tmp_path: Path) -> None:
    weights = tf.constant(np.random.default_rng(0).standard_normal((4096, 8)).astype(np.float32))
    spec = tf.TensorSpec([None, 4096], tf.float32, "x")
    # Fails for other numbers of rows than three.
    path = save_function(tmp_path / "1", lambda x: {"y": tf.matmul(tf.reshape(x, [3, 4096]), weights)}, spec)
    write_manifest(path, batch_sizes=(3,), files={}, parity={"atol": 0, "rtol": 0})
    assert "its output 'y' differs by up to " in (exact := load_with_manifest(path))
    assert exact.endswith("for 3 rows; the tolerance is 0 + 0 * |expected|")
    write_manifest(path, batch_sizes=(3,), files={}, parity={"atol": 1e-2, "rtol": 1e-2})
    assert load_with_manifest(path).startswith("device: CPU (OpenVINO ")


def load_with_manifest(path: Path) -> str:
    """Load a version as the server does, and return the note on its device."""
    metrics = RecordingMetrics()
    loader = VersionLoader(
        LocalStorage(missing_file), with_openvino(), LoadingOptions(), DeviceServices(SystemClock(), metrics)
    )
    loaded = loader.load(AspiredVersion(ServableId("m", 1), VersionLocation(str(path))))
    loader.unload(loaded)
    return loaded.notes[0]


def test_tensorflow_runs_the_other_signatures(tmp_path: Path) -> None:
    module = tf.Module()
    module.serve = tf.function(double_and_add, input_signature=[SPEC])
    module.other = tf.function(lambda x: {"y": x * 7}, input_signature=[SPEC])
    path = tmp_path / "1"
    tf.saved_model.save(module, str(path), signatures={"serving_default": module.serve, "other": module.other})
    servable = load(path)
    assert servable.device.startswith("CPU (OpenVINO ")
    x = np.ones((2, 2), np.float32)
    assert run(servable, {"x": x})["double"].tolist() == [[2, 2], [2, 2]]
    assert run(servable, {"x": x}, "other")["y"].tolist() == [[7, 7], [7, 7]]
    servable.close()


def test_another_shape_than_the_signatures_is_an_invalid_argument(tmp_path: Path) -> None:
    servable = load(save_function(tmp_path / "1", double_and_add, SPEC))
    with pytest.raises(InvalidArgument, match=r"Input 'x' has shape \[1, 3\], expected \[\?, 2\]"):
        run(servable, {"x": np.ones((1, 3), np.float32)})
    assert run(servable, {"x": np.ones((1, 2), np.float32)})["added"].tolist() == [[2, 2]]
    servable.close()


def test_scalars_and_bytes_of_images_are_inputs(tmp_path: Path) -> None:
    module = tf.Module()
    specs = [tf.TensorSpec([None, 2], tf.uint8, "pixels"), tf.TensorSpec([], tf.float32, "scale")]
    module.serve = tf.function(
        lambda pixels, scale: {"y": tf.cast(pixels, tf.float32) * scale, "bright": pixels > 128}, input_signature=specs
    )
    tf.saved_model.save(module, str(tmp_path / "1"), signatures={"serving_default": module.serve})
    servable = load(tmp_path / "1")
    assert servable.device.startswith("CPU (OpenVINO ")
    found = run(servable, {"pixels": np.array([[0, 255]], np.uint8), "scale": np.array(2, np.float32)})
    assert found["y"].tolist() == [[0, 510]]
    assert found["bright"].tolist() == [[False, True]]
    servable.close()


def test_overwritten_files_do_not_change_the_loaded_model(tmp_path: Path) -> None:
    path = save_mlp(tmp_path / "1")
    servable = load(path)
    assert servable.device.startswith("CPU (OpenVINO ")
    x = {"x": np.ones((1, 64), np.float32)}
    before = run(servable, x)["y"]
    for file in (path / "variables").iterdir():
        with file.open("r+b") as opened:
            opened.write(bytes(file.stat().st_size))
    np.testing.assert_array_equal(run(servable, x)["y"], before)
    servable.close()


def test_threads_of_openvino_keep_their_priority(tmp_path: Path) -> None:
    # Earlier tests may have left threads, also with another priority.
    before = set(os.listdir("/proc/self/task"))
    servable = load(save_mlp(tmp_path / "1"))
    own = os.getpriority(os.PRIO_PROCESS, 0)
    # The kernel lists a thread that Python has joined until it has ended.
    deadline_s = time.monotonic() + 60
    while (found := priorities(set(os.listdir("/proc/self/task")) - before)) - {own}:
        assert time.monotonic() < deadline_s, found
        time.sleep(0.01)
    servable.close()


def priorities(threads: Iterable[str]) -> set[int]:
    """Return the niceness of those of the threads that still run."""
    found = set()
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):
            found.add(os.getpriority(os.PRIO_PROCESS, int(thread)))
    return found


def test_without_openvino_the_status_says_which_extra_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "path", [folder for folder in sys.path if not (Path(folder) / "openvino" / "__init__.py").exists()]
    )
    monkeypatch.delitem(sys.modules, "openvino", raising=False)
    servable = load(save_mlp(tmp_path / "1"))
    assert servable.device.startswith("CPU (TensorFlow ")
    assert "pip install 'tpuserve-server[openvino]'" in servable.device
    servable.close()


def test_off_is_tensorflow_alone() -> None:
    memory = HostMemory()
    tensorflow = TensorFlowOnDemand(TensorFlowOptions(), memory)
    assert TensorFlowOrOpenVino.of(tensorflow, OpenVinoOptions(), memory) is tensorflow
