"""Executors that need TensorFlow for test_executor_contract.py, which also runs where TensorFlow is missing."""

from pathlib import Path

import tensorflow as tf

from tests.support.saved_models import save_function
from tests.support.tflite_models import convert, save
from tpuserve_server.core.system.memory import HostMemory
from tpuserve_server.core.terms.servable import Executor
from tpuserve_server.executors.choice import ExecutorChoice
from tpuserve_server.executors.openvino import OpenVinoOptions
from tpuserve_server.executors.openvino.candidate import TensorFlowOrOpenVino
from tpuserve_server.executors.tensorflow import TensorFlowOptions
from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor
from tpuserve_server.executors.tensorflow.on_demand import TensorFlowOnDemand
from tpuserve_server.executors.tflite import TfliteOptions
from tpuserve_server.executors.tflite.candidate import PreferredTflite
from tpuserve_server.observe.metrics.measurements import DeviceMeasurements

SPEC = tf.TensorSpec([None, 2], tf.float32, "x")


def double_and_add(x: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return `x` float32 [rows, 2] times two and plus one."""
    return {"double": x * 2, "added": x + 1}


def executor(kind: str) -> Executor:
    """Return the executor of a kind: `tensorflow`, `tflite` or `openvino`."""
    if kind == "openvino":
        return with_openvino()
    return preferring_tflite() if kind == "tflite" else TensorFlowExecutor(TensorFlowOptions())


def with_openvino(*, least_gain: float = 0, bfloat16: bool = False) -> Executor:
    """Return the executors of a server with `--openvino=auto`, which run equal versions on OpenVINO however slow."""
    memory = HostMemory()
    tensorflow = TensorFlowOnDemand(TensorFlowOptions(mixed_precision="bfloat16" if bfloat16 else ""), memory)
    options = OpenVinoOptions("auto", mixed_precision=bfloat16)
    candidate = TensorFlowOrOpenVino(tensorflow, options, memory, least_gain=least_gain)
    return ExecutorChoice((candidate,), DeviceMeasurements())


def preferring_tflite() -> Executor:
    """Return the executors of a server with `--prefer_tflite_model`."""
    tflite = PreferredTflite(TfliteOptions(preferred=True, max_interpreters=2, num_threads=1), HostMemory())
    return ExecutorChoice((tflite, TensorFlowOnDemand(TensorFlowOptions(), HostMemory())), DeviceMeasurements())


def version(kind: str, path: Path) -> Path:
    """Save `double_and_add` for a kind of executor, and return `path`."""
    if kind == "tflite":
        return save(path, converted())
    return save_function(path, double_and_add, SPEC)


def converted() -> bytes:
    """Return `double_and_add` as a TensorFlow Lite model."""
    return convert(named=(double_and_add, SPEC))
