"""Graphs like those of TPU programs, for the exporter's tests, each with a checkpoint of its variables."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.exporter.tf1_graphs import dense

v1 = tf.compat.v1
ROWS = 4


def recurrent(x: Any) -> Any:  # noqa: ANN401 - tensors
    """Build a model with a loop: `x` [batch, 3] passes through one layer three times."""
    _, state = tf.while_loop(
        lambda step, _: step < 3, lambda step, state: (step + 1, tf.tanh(dense(state, 3, "cell"))), [0, x]
    )
    return tf.identity(state, "state")


def averaging(x: Any) -> Any:  # noqa: ANN401 - tensors
    """Build a model that sums its activations over replicas."""
    return tf.identity(v1.tpu.cross_replica_sum(dense(x, 2, "head")), "scores")


def one_batch_only(x: Any) -> Any:  # noqa: ANN401 - tensors
    """Build a model that adds a constant with the number of rows at build time."""
    return tf.identity(dense(x, 2, "head") + tf.constant(np.ones((x.shape[0], 2), np.float32)), "scores")


def random(x: Any) -> Any:  # noqa: ANN401 - tensors
    return tf.identity(dense(x, 2, "head") + v1.random_normal([2]), "scores")


def whitening(x: Any) -> Any:  # noqa: ANN401 - tensors
    """Normalise each batch by its own statistics, without averages."""
    hidden = dense(x, 2, "head")
    mean, variance = tf.nn.moments(hidden, [0], name="whitening")
    return tf.identity((hidden - mean) * tf.math.rsqrt(variance + 1e-3), "scores")


def exchanging(x: Any) -> Any:  # noqa: ANN401 - tensors
    """Build a model whose replicas exchange halves, which a single replica cannot do."""
    scores = tf.raw_ops.AllToAll(
        input=dense(x, 2, "head"), group_assignment=[[0, 1]], concat_dimension=1, split_dimension=0, split_count=2
    )
    return tf.identity(scores, "scores")


def two_inputs(x: Any, weight: Any) -> Any:  # noqa: ANN401 - tensors
    return tf.identity(dense(x, 2, "head") * weight, "scores")


def save(folder: Path, model: Callable[..., Any], inputs: int = 1) -> Path:
    """Save `model` after tpu.rewrite, fed by placeholders of ROWS rows, and return the .meta file."""
    v1.disable_control_flow_v2()
    try:
        prefix = _save_variables(folder, model, inputs)
        with tf.Graph().as_default():
            v1.tpu.rewrite(lambda *tensors: model(*tensors), _placeholders(inputs))
            meta = prefix.with_name(prefix.name + ".meta")
            v1.train.export_meta_graph(str(meta))
            return meta
    finally:
        v1.enable_control_flow_v2()


def _save_variables(folder: Path, model: Callable[..., Any], inputs: int) -> Path:
    """Save the variables from a graph without TPU operations, because one with them cannot run."""
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(2)
        tensors = _placeholders(inputs)
        if model is averaging or model is exchanging:
            dense(tensors[0], 2, "head")
        else:
            model(*tensors)
        session.run(v1.global_variables_initializer())
        return Path(v1.train.Saver().save(session, str(folder / "model.ckpt"), 3, write_meta_graph=False))


def _placeholders(count: int) -> list[Any]:
    return [v1.placeholder(tf.float32, [ROWS, 3 if index == 0 else 1]) for index in range(count)]
