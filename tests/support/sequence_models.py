"""A text model for tests, created with TensorFlow: attention over tokens that ignores padding."""

from pathlib import Path

import numpy as np
import tensorflow as tf

# Token 0 is padding.
TOKENS = 50
_WIDTH = 16
_TAGS = 5


def save_tagger(path: Path, *, mask: bool = False, seed: int = 0) -> Path:
    """Save ids (rows, length) -> tags (rows, length, 5), attention (rows, length, length) and pooled (rows, 16).

    With `mask`, a second input marks the real tokens, as in text models. Otherwise, id 0 is padding.
    """
    random = np.random.default_rng(seed)
    module = tf.Module()
    module.embedding = tf.Variable(random.standard_normal((TOKENS, _WIDTH)).astype(np.float32))
    module.tags = tf.Variable(random.standard_normal((_WIDTH, _TAGS)).astype(np.float32))

    def tag(ids: tf.Tensor, mask: tf.Tensor) -> dict[str, tf.Tensor]:
        real = tf.cast(mask, tf.float32)
        x = tf.gather(module.embedding, ids)
        scores = tf.matmul(x, x, transpose_b=True) / 4.0 + (real[:, tf.newaxis, :] - 1.0) * 1e9
        attention = tf.nn.softmax(scores)
        x = tf.matmul(attention, x)
        weights = real / tf.reduce_sum(real, axis=1, keepdims=True)
        pooled = tf.reduce_sum(x * weights[:, :, tf.newaxis], axis=1)
        return {"tags": tf.matmul(x, module.tags), "attention": attention, "pooled": pooled}

    specs = [tf.TensorSpec([None, None], tf.int32, name) for name in ("ids", "mask")]
    if mask:
        module.serve = tf.function(tag, input_signature=specs)
    else:
        module.serve = tf.function(lambda ids: tag(ids, ids != 0), input_signature=specs[:1])
    tf.saved_model.save(module, str(path), signatures={"serving_default": module.serve})
    return path
