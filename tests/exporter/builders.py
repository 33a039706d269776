"""Models for the exporter's tests, named on its command line as `tests.exporter.builders:FUNCTION`."""

import random
import signal
import threading
from typing import Any

import keras


def tiny(units: int = 4, dtype: str = "float32") -> keras.Model:
    """Build a model: `features` [batch, 3] → `scores` [batch, 2]."""
    features = keras.Input((3,), name="features")
    hidden = keras.layers.Dense(units, activation="relu", name="hidden", dtype=dtype)(features)
    return keras.Model(features, keras.layers.Dense(2, name="scores", dtype=dtype)(hidden))


def tiny_with_extra() -> keras.Model:
    """Build `tiny` with a layer that its checkpoints lack."""
    features = keras.Input((3,), name="features")
    hidden = keras.layers.Dense(4, activation="relu", name="hidden")(features)
    hidden = keras.layers.Dense(4, name="extra")(hidden)
    return keras.Model(features, keras.layers.Dense(2, name="scores")(hidden))


def headless() -> keras.Model:
    """Build `tiny` without its last layer."""
    features = keras.Input((3,), name="features")
    return keras.Model(features, keras.layers.Dense(4, activation="relu", name="hidden")(features))


def unnamed() -> keras.Model:
    """Build `tiny` with Keras' numbered default names."""
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(2)])


def unnamed_relu() -> keras.Model:
    """Build `unnamed` with a relu in its first layer."""
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(2)])


def renamed() -> keras.Model:
    """Build `tiny` with other names and an additional layer, so that neither names nor positions match `tiny`."""
    features = keras.Input((3,), name="features")
    hidden = keras.layers.ReLU(name="positive")(keras.layers.Dense(4, name="encoder")(features))
    return keras.Model(features, keras.layers.Dense(2, name="head")(hidden))


def named_parts() -> keras.Model:
    """Build a model with dictionaries of inputs and outputs, and two inputs of different dtypes."""
    ids, weight = keras.Input((5,), name="ids", dtype="int32"), keras.Input((1,), name="weight")
    pooled = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(2, 4)(ids))
    outputs = {"score": keras.layers.Dense(1)(pooled) * weight, "embedding": pooled}
    return keras.Model({"ids": ids, "weight": weight}, outputs)


def fixed_batch() -> keras.Model:
    """Build a model for exactly four rows."""
    features = keras.Input(batch_shape=(4, 3), name="features")
    return keras.Model(features, keras.layers.Dense(2, name="scores")(features))


@keras.saving.register_keras_serializable("tests")
class RanksRows(keras.layers.Layer):  # type: ignore[misc]  # keras is untyped
    """A layer that ranks the rows as one list, so that each row depends on the others."""

    def call(self, x: Any) -> Any:  # noqa: ANN401 - a Keras tensor
        return keras.ops.softmax(x, axis=0)


class TracedNoise(keras.layers.Layer):  # type: ignore[misc]  # keras is untyped
    """A layer that adds a random number drawn while tracing, so that every trace is a different function."""

    def call(self, x: Any) -> Any:  # noqa: ANN401 - a Keras tensor
        return x + random.SystemRandom().uniform(1.0, 2.0)


def row_dependent() -> keras.Model:
    features = keras.Input((3,), name="features")
    return keras.Model(features, RanksRows(name="scores")(features))


def unsteady() -> keras.Model:
    features = keras.Input((3,), name="features")
    return keras.Model(features, TracedNoise(name="scores")(features))


class Scorer(keras.Model):  # type: ignore[misc]  # keras is untyped
    def __init__(self) -> None:
        super().__init__()
        self.scores = keras.layers.Dense(2, name="scores")

    def call(self, x: Any) -> Any:  # noqa: ANN401 - a Keras tensor
        return self.scores(x)


def subclassed() -> keras.Model:
    return Scorer()


def no_model() -> int:
    return 3


class Stuck(keras.layers.Layer):  # type: ignore[misc]  # keras is untyped
    """A layer that builds, but never finishes tracing for serving."""

    def call(self, x: Any, training: bool | None = None) -> Any:  # noqa: ANN401 - a Keras tensor
        if training is False:
            print("tracing for ever", flush=True)
            threading.Event().wait()
        return x


def stuck() -> keras.Model:
    features = keras.Input((3,), name="features")
    return keras.Model(features, Stuck(name="scores")(features))


def normalized() -> keras.Model:
    """Build a model that normalizes `features` [batch, 3] with a fixed mean and variance."""
    features = keras.Input((3,), name="features")
    return keras.Model(features, keras.layers.Normalization(name="scores")(features))


def free_width() -> keras.Model:
    """Build a model: `features` [batch, any] → the same values with a relu."""
    features = keras.Input((None,), name="features")
    return keras.Model(features, keras.layers.Activation("relu", name="positive")(features))


def colliding() -> keras.Model:
    """Build a model whose outputs are named `a_b` at two depths."""
    features = keras.Input((3,), name="features")
    return keras.Model(features, {"a": {"b": keras.layers.Dense(1)(features)}, "a_b": keras.layers.Dense(2)(features)})


def dashed() -> keras.Model:
    """Build a model whose input name is not a Python identifier."""
    features = keras.Input((3,), name="my-features")
    return keras.Model(features, keras.layers.Dense(2, name="scores")(features))


def talkative() -> keras.Model:
    """Build `tiny` and print a line."""
    print("building")
    return tiny()


def interrupted() -> keras.Model:
    """Simulate Ctrl-C during the build."""
    signal.raise_signal(signal.SIGINT)
    return tiny()


def pictures() -> keras.Model:
    """Build a model: `image` [batch, 6, 8, 3] → `probabilities` [batch, 3], `area` [batch, 1]."""
    image = keras.Input((6, 8, 3), name="image")
    flat = keras.layers.Flatten()(image)
    outputs = {
        "probabilities": keras.layers.Dense(3, activation="softmax")(flat),
        "area": keras.layers.Dense(1)(flat),
    }
    return keras.Model(image, outputs)


def passed_on(shape: list[int | None], dtype: str) -> keras.Model:
    """Build a model: `image` [batch, *shape] → `same`, its values as floats."""
    image = keras.Input(shape, name="image", dtype=dtype)
    return keras.Model(image, keras.layers.Rescaling(1.0, name="same")(image))


class Inverse(keras.layers.Layer):  # type: ignore[misc]  # keras is untyped
    """A layer that inverts a matrix, which TensorFlow Lite does not support."""

    def call(self, x: Any) -> Any:  # noqa: ANN401 - a Keras tensor
        return keras.ops.inv(x[:, :, None] * x[:, None, :] + keras.ops.eye(x.shape[1]))


def inverting() -> keras.Model:
    features = keras.Input((3,), name="features")
    return keras.Model(features, Inverse(name="scores")(features))


def module(units: int = 2) -> Any:  # noqa: ANN401 - a tf.Module
    """Build a tf.Module that declares its signature: `features` [batch, 3] → `scores` [batch, units]."""
    import tensorflow as tf

    class Linear(tf.Module):  # type: ignore[misc]  # tensorflow is untyped
        def __init__(self) -> None:
            super().__init__()
            self.w = tf.Variable(tf.random.normal((3, units)), name="w")
            self.b = tf.Variable(tf.zeros(units), name="b")

        @tf.function(input_signature=[tf.TensorSpec((None, 3), tf.float32, name="features")])  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:  # noqa: ANN401 - a tensor
            return {"scores": x @ self.w + self.b}

    return Linear()


def lazy_module() -> Any:  # noqa: ANN401 - a tf.Module
    """Build a tf.Module that creates its variable in the first call and declares no inputs."""
    import tensorflow as tf

    class Lazy(tf.Module):  # type: ignore[misc]  # tensorflow is untyped
        def __init__(self) -> None:
            super().__init__()
            self.w: Any = None

        def __call__(self, x: Any, training: bool = True) -> Any:  # noqa: ANN401 - a tensor
            if self.w is None:
                self.w = tf.Variable(tf.random.normal((3, 2)), name="w")
            return x @ self.w if not training else x @ self.w + 0.0

    return Lazy()


def silent_module() -> Any:  # noqa: ANN401 - a tf.Module
    import tensorflow as tf

    return tf.Module()


def keras_2() -> Any:  # noqa: ANN401 - a Keras 2 model
    import tf_keras

    return tf_keras.Sequential([tf_keras.Input((3,)), tf_keras.layers.Dense(4, "relu"), tf_keras.layers.Dense(2)])
