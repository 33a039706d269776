"""Tests that the server finds operations in the graphs of real SavedModels that an event loop must not run."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.saved_models import save_function, save_half_plus_two, save_mlp
from tpuserve_formats.messages.official import ConfigProto
from tpuserve_server.core.terms.servable import VersionFiles
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.executors.tensorflow import TensorFlowOptions
from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor

X = tf.TensorSpec([None, 2], tf.float32, "x")
TABLE = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [2]), 0)


def never_blocks(path: Path, *allowed: str, config: ConfigProto | None = None) -> bool:
    options = TensorFlowOptions(allowed_ops=allowed, session_config=config)
    servable = TensorFlowExecutor(options).load(ServableId("m", 1), VersionFiles(path))
    try:
        return servable.never_blocks
    finally:
        servable.close()


@pytest.mark.parametrize("save", [save_mlp, save_half_plus_two])
def test_layers_with_variables_and_parsed_examples_never_block(tmp_path: Path, save: Callable[[Path], Path]) -> None:
    assert never_blocks(save(tmp_path / "1"))


def look_up(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": TABLE.lookup(tf.cast(x, tf.int32))}


def fixed_sizes(x: tf.Tensor) -> dict[str, tf.Tensor]:
    wide = tf.pad(tf.one_hot(tf.cast(x, tf.int32), 4), [[0, 0], [1, 1], [0, 0]]) + tf.fill([4], 2.0)
    return {"y": tf.tile(wide, [1, 2, 1])}


@pytest.mark.parametrize("function", [look_up, fixed_sizes])
def test_tables_and_outputs_of_fixed_sizes_never_block(
    tmp_path: Path, function: Callable[[tf.Tensor], dict[str, tf.Tensor]]
) -> None:
    module = tf.Module()
    module.table = TABLE
    module.serve = tf.function(function, input_signature=[X])
    tf.saved_model.save(module, str(tmp_path / "1"), signatures={"serving_default": module.serve})
    assert never_blocks(tmp_path / "1")


def choose(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": tf.cond(x[0, 0] > 0, lambda: x, lambda: -x)}


def loop(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": tf.while_loop(lambda y: tf.reduce_sum(y) < 9, lambda y: (y + 1,), (x,))[0]}


def map_rows(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": tf.map_fn(lambda row: -row, x)}


def size_from_a_value(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": x + tf.reduce_sum(tf.range(x[0, 0]))}


def batch_in_the_graph(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": tf.nondifferentiable_batch_function(1, 8, 1000)(lambda y: y + 1)(x)}


def print_it(x: tf.Tensor) -> dict[str, tf.Tensor]:
    tf.print(x)
    return {"y": x}


def compile_it(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": tf.function(lambda y: y + 1, jit_compile=True)(x)}


def run_python(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": tf.numpy_function(np.negative, [x], tf.float32)}


def read_a_file(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": x, "text": tf.io.read_file("/proc/version")}


def draw(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": x + tf.random.uniform([2])}


@pytest.mark.parametrize(
    "function",
    [
        choose,
        loop,
        map_rows,
        size_from_a_value,
        batch_in_the_graph,
        print_it,
        compile_it,
        run_python,
        read_a_file,
        draw,
    ],
)
def test_runs_that_may_wait_or_take_any_time_may_block(
    tmp_path: Path, function: Callable[[tf.Tensor], dict[str, tf.Tensor]]
) -> None:
    path = save_function(tmp_path / "1", function, X)
    assert not never_blocks(path, "PyFunc", "ReadFile")


def test_an_own_thread_pool_and_automatic_compilation_may_block(tmp_path: Path) -> None:
    path = save_mlp(tmp_path / "1")
    assert not never_blocks(path, config=ConfigProto(inter_op_parallelism_threads=2))
    compiled = ConfigProto()
    compiled.graph_options.optimizer_options.global_jit_level = 1
    assert not never_blocks(path, config=compiled)
