"""Models for the tests of device programs, named as `tests.exporter.device_builders:FUNCTION`."""

import keras
import tensorflow as tf


def recurrent() -> keras.Model:
    """Build an LSTM, whose module XLA fills with copies: `steps` [batch, 5, 3] → `scores` [batch, 2]."""
    steps = keras.Input((5, 3), name="steps")
    return keras.Model(steps, keras.layers.Dense(2, name="scores")(keras.layers.LSTM(4, name="lstm")(steps)))


def wide() -> keras.Model:
    """Build a model: `ids` int64 [batch, 4] → a float64 mean of embeddings, and the sum of the ids."""
    ids = keras.Input((4,), dtype="int64", name="ids")
    vectors = keras.layers.Embedding(6, 3, dtype="float64", name="table")(ids)
    outputs = {"mean": keras.ops.mean(vectors, axis=1), "sum": keras.ops.sum(ids, axis=1)}
    return keras.Model(ids, outputs)


class Suppressed(keras.layers.Layer):  # type: ignore[misc]  # keras is untyped
    """A layer that selects the best boxes by score, with an operation that no compiler supports."""

    def call(self, features: tf.Tensor) -> tf.Tensor:
        boxes = tf.reshape(tf.tile(features[:, :1], [1, 8]), [-1, 2, 1, 4])
        found = tf.image.combined_non_max_suppression(boxes, features[:, :2, tf.newaxis], 2, 2)
        return found.nmsed_scores


def suppressing() -> keras.Model:
    features = keras.Input((3,), name="features")
    return keras.Model(features, Suppressed(name="detector")(features))


class Counted(keras.layers.Layer):  # type: ignore[misc]  # keras is untyped
    """A layer that counts its calls in a variable."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.calls = self.add_weight(name="calls", initializer="zeros", trainable=False)

    def call(self, features: tf.Tensor) -> tf.Tensor:
        self.calls.assign(self.calls + 1.0)
        return features * 2.0


def counting() -> keras.Model:
    features = keras.Input((3,), name="features")
    return keras.Model(features, Counted(name="counter")(features))


def of_any_length() -> keras.Model:
    """Build a model: `steps` [batch, any, 3] → `scores` [batch, 2]."""
    steps = keras.Input((None, 3), name="steps")
    pooled = keras.layers.GlobalMaxPooling1D()(steps)
    return keras.Model(steps, keras.layers.Dense(2, name="scores")(pooled))


def texts() -> keras.Model:
    """Build a model that masks 0: `ids` int32 [batch, any] → `scores` [batch, 2]."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    real = keras.ops.cast(keras.ops.not_equal(ids, 0), "float32")[:, :, None]
    vectors = keras.layers.Embedding(6, 3, name="table")(ids) * real
    pooled = keras.ops.sum(vectors, axis=1)
    return keras.Model(ids, keras.layers.Dense(2, name="scores")(pooled))


def spreading() -> keras.Model:
    """Build a model with 2**31 intermediate numbers (8 GiB) per row: `features` [batch, 1] → `least` [batch, 1]."""
    features = keras.Input((1,), name="features")
    spread = keras.ops.sort(keras.ops.cumsum(keras.ops.tile(features[:, :, None], [1, 2**17, 2**14]), axis=2), axis=1)
    return keras.Model(features, keras.ops.min(spread, axis=(1, 2))[:, None])


class Spelled(keras.layers.Layer):  # type: ignore[misc]  # keras is untyped
    def call(self, features: tf.Tensor) -> tf.Tensor:
        return tf.strings.as_string(features)


def spelling() -> keras.Model:
    features = keras.Input((3,), name="features")
    return keras.Model(features, {"text": Spelled(name="speller")(features)})
