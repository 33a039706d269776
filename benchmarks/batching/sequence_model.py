"""The benchmark's text model, a small transformer encoder with fixed random weights, and texts of many lengths."""

from pathlib import Path

import numpy as np
import tensorflow as tf

from tpuserve_server.core.terms.types import Array

LONGEST = 256
_TOKENS, _WIDTH, _LAYERS, _CLASSES = 1000, 128, 3, 10
# Lengths are log-normal, like those of sentences and queries: half are below the median, some at the limit.
_MEDIAN, _SPREAD = 40, 0.8


def random_texts(count: int) -> list[Array]:
    """Return arrays of ids of shape (1, length), the same on every call. Texts do not contain the padding id 0."""
    random = np.random.default_rng(20)
    lengths = np.clip(random.lognormal(np.log(_MEDIAN), _SPREAD, count), 4, LONGEST).astype(int)
    return [random.integers(1, _TOKENS, (1, length)).astype(np.int32) for length in lengths]


def write_model(path: Path) -> Path:
    """Write a SavedModel: ids (rows, length) -> classes (rows, 10). The model masks padding."""
    random = np.random.default_rng(20)

    def weight(*shape: int) -> tf.Variable:
        return tf.Variable(random.normal(0.0, shape[0] ** -0.5, shape).astype(np.float32))

    module = tf.Module()
    module.embedding = weight(_TOKENS, _WIDTH)
    module.layers = [
        [weight(_WIDTH, _WIDTH), weight(_WIDTH, _WIDTH), weight(_WIDTH, 4 * _WIDTH), weight(4 * _WIDTH, _WIDTH)]
        for _ in range(_LAYERS)
    ]
    module.classes = weight(_WIDTH, _CLASSES)

    def classify(ids: tf.Tensor) -> dict[str, tf.Tensor]:
        real = tf.cast(ids != 0, tf.float32)
        hidden = (real[:, tf.newaxis, :] - 1.0) * 1e9
        x = tf.gather(module.embedding, ids)
        for keys, values, widen, narrow in module.layers:
            scores = tf.matmul(x @ keys, x, transpose_b=True) * _WIDTH**-0.5 + hidden
            x += tf.matmul(tf.nn.softmax(scores), x @ values)
            x += tf.nn.relu(x @ widen) @ narrow
            x /= tf.norm(x, axis=-1, keepdims=True) + 1e-6
        pooled = tf.reduce_sum(x * real[:, :, tf.newaxis], axis=1) / tf.reduce_sum(real, axis=1, keepdims=True)
        return {"classes": pooled @ module.classes}

    module.serve = tf.function(classify, input_signature=[tf.TensorSpec([None, None], tf.int32, "ids")])
    tf.saved_model.save(module, str(path), signatures={"serving_default": module.serve})
    return path
