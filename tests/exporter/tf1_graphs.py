"""TF1 models for the exporter's tests: functions of tensors, and their checkpoints."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


def dense(x: Any, units: int, name: str) -> Any:  # noqa: ANN401 - tensors
    with v1.variable_scope(name):
        kernel = v1.get_variable("kernel", [x.shape[-1], units])
        return x @ kernel + v1.get_variable("bias", [units], initializer=v1.zeros_initializer())


def mlp(features: Any, hidden: int = 8) -> dict[str, Any]:  # noqa: ANN401 - tensors
    """Build a model: `features` [batch, 4] → `logits` [batch, 3] and `probabilities`."""
    with v1.variable_scope("mlp"):
        logits = dense(tf.nn.relu(dense(features, hidden, "hidden")), 3, "logits")
    return {"logits": logits, "probabilities": tf.nn.softmax(logits)}


def wider(features: Any) -> dict[str, Any]:  # noqa: ANN401 - tensors
    """Build a variant of `mlp` that differs in two shapes, a dtype and names."""
    with v1.variable_scope("mlp"):
        hidden = dense(tf.nn.relu(features), 9, "hidden")
        with v1.variable_scope("logits"):
            bias = v1.get_variable("bias", [3], dtype=tf.int32, initializer=v1.zeros_initializer())
        return {"logits": dense(hidden, 3, "scores") + tf.cast(bias, tf.float32)}


def one_tensor(features: Any) -> Any:  # noqa: ANN401 - tensors
    return mlp(features)["logits"]


def with_reference_variables(features: Any) -> Any:  # noqa: ANN401 - tensors
    """Build `mlp` with reference variables, TensorFlow 1's default."""
    with v1.variable_scope("", use_resource=False):
        return mlp(features)["logits"]


def in_parts(features: Any) -> Any:  # noqa: ANN401 - tensors
    """Build `mlp` with its first kernel in two parts, as for parameter servers. Its checkpoint stores one variable."""
    with v1.variable_scope("", partitioner=v1.fixed_size_partitioner(2)):
        return mlp(features)["logits"]


def looping(features: Any) -> Any:  # noqa: ANN401 - tensors
    """Build a loop whose body reads a variable."""
    with v1.variable_scope("mlp/hidden"):
        bias = v1.get_variable("bias", [8])
    _, total = tf.while_loop(
        lambda step, _: step < 3,
        lambda step, total: (step + 1, total + bias),
        (0, tf.zeros_like(features[:, :1]) + bias),
    )
    return total


def with_table(features: Any) -> Any:  # noqa: ANN401 - tensors
    """Build a model with a lookup table, which a checkpoint of variables does not restore."""
    initializer = tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1], tf.int64), tf.constant([2.0, 3.0]))
    table = v1.lookup.StaticHashTable(initializer, 0.0)
    return mlp(features)["logits"] * table.lookup(tf.cast(features[:, :1], tf.int64))


def no_tensor(features: Any) -> int:  # noqa: ANN401 - tensors
    return 3


def train(prefix: Path, steps: int = 20, averages: bool = False, old_format: bool = False) -> Path:
    """Train `mlp` with Adam, save it like a TF1 script and return the checkpoint's prefix."""
    with tf.Graph().as_default():
        v1.set_random_seed(1)
        step = v1.train.get_or_create_global_step()
        features, labels = data()
        logits = mlp(tf.constant(features))["logits"]
        loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
        update = v1.train.AdamOptimizer(0.1).minimize(loss, global_step=step)
        if averages:
            with tf.control_dependencies([update]):
                update = v1.train.ExponentialMovingAverage(0.5).apply(v1.trainable_variables())
        saver = v1.train.Saver(write_version=v1.train.SaverDef.V1 if old_format else v1.train.SaverDef.V2)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for _ in range(steps):
                session.run(update)
            return Path(saver.save(session, str(prefix), global_step=step, write_meta_graph=False))


def data() -> tuple[Any, Any]:
    """Return twelve rows of three classes."""
    labels = np.arange(12) % 3
    features = np.eye(4, dtype=np.float32)[labels] + np.linspace(0, 0.3, 48, dtype=np.float32).reshape(12, 4)
    return features, labels
