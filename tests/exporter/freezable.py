"""Models whose graphs have nodes to fold, precompute or drop, including builders for the command line."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from tpuserve_exporter.models.served_function import ServedFunction


def settle(model: keras.Model) -> keras.Model:
    """Set statistics, scales and biases to values of a trained model: none is 0 or 1."""
    random = np.random.default_rng(1)
    for variable in model.variables:
        if variable.path.endswith(("variance", "gamma")):
            variable.assign(random.uniform(0.5, 1.5, variable.shape))
        elif variable.path.endswith(("beta", "mean", "bias")):
            variable.assign(random.normal(size=variable.shape))
    return model


def convolutions(dtype: str = "float32") -> keras.Model:
    """Build a model with a batch norm behind each of six kernels and one without a kernel.

    `image` [batch, 8, 8, 3] → `scores` [batch, 5].
    """
    layers = keras.layers

    def norm(value: Any) -> Any:  # noqa: ANN401 - a Keras tensor
        return layers.BatchNormalization(dtype=dtype)(value)

    image = keras.Input((8, 8, 3), name="image")
    value = norm(layers.Conv2D(4, 3, dtype=dtype)(image))
    value = norm(layers.DepthwiseConv2D(3, use_bias=False, depth_multiplier=2, dtype=dtype)(layers.ReLU()(value)))
    value = norm(layers.SeparableConv2D(6, 3, use_bias=False, padding="same", dtype=dtype)(value))
    value = norm(layers.Conv2DTranspose(3, 3, dtype=dtype)(value))
    value = norm(layers.ReLU()(value))
    value = norm(layers.Conv1D(4, 3, dtype=dtype)(layers.Reshape((36, 3))(value)))
    value = norm(layers.Dense(5, dtype=dtype)(layers.Flatten()(value)))
    return settle(keras.Model(image, layers.Softmax(name="scores", dtype="float32")(value)))


def function(shape: list[int | None], call: Callable[..., Any], *trackables: Any) -> ServedFunction:  # noqa: ANN401
    """Return a function: `x` float32 of that shape → `y`."""
    import tensorflow as tf

    return ServedFunction({"x": tf.TensorSpec(shape, tf.float32, name="x")}, lambda x: {"y": call(x)}, trackables)


def guarded() -> Any:  # noqa: ANN401 - a tf.Module
    """Build a module: `x` [batch, 3] → `scores`.

    It has nested functions and the assertions, prints and checks of training.
    """
    import tensorflow as tf

    class Guarded(tf.Module):  # type: ignore[misc]  # tensorflow is untyped
        def __init__(self) -> None:
            super().__init__()
            self.w = tf.Variable(tf.ones((3, 2)), name="w")
            self.scale = tf.Variable([2.0, 3.0], name="scale")

        @tf.function  # type: ignore[untyped-decorator]  # tensorflow is untyped
        def inner(self, x: Any) -> Any:  # noqa: ANN401 - a tensor
            tf.debugging.assert_less(x, 100.0)
            tf.print("x:", tf.shape(x))
            return tf.debugging.check_numerics(x, "x") @ self.w * self.scale

        @tf.function(input_signature=[tf.TensorSpec((None, 3), tf.float32, name="x")])  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:  # noqa: ANN401 - a tensor
            return {"scores": self.inner(tf.stop_gradient(x))}

    return Guarded()


class CountsCalls(keras.layers.Layer):  # type: ignore[misc]  # keras is untyped
    """A layer that increments a variable at each call."""

    def build(self, shape: Any) -> None:  # noqa: ANN401 - Keras' own
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, x: Any) -> Any:  # noqa: ANN401 - a Keras tensor
        self.calls.assign_add(1.0)
        return x * 1.0


def counting() -> keras.Model:
    features = keras.Input((3,), name="features")
    return keras.Model(features, CountsCalls(name="scores")(features))


class AlwaysTraining(keras.layers.Layer):  # type: ignore[misc]  # keras is untyped
    """A layer that always calls another layer in training mode."""

    def __init__(self, layer: keras.layers.Layer, **options: Any) -> None:  # noqa: ANN401 - Keras' own
        super().__init__(**options)
        self.layer = layer

    def call(self, x: Any) -> Any:  # noqa: ANN401 - a Keras tensor
        return self.layer(x, training=True)


def dropping() -> keras.Model:
    """Build a model whose dropout cannot be disabled."""
    features = keras.Input((3,), name="features")
    return keras.Model(features, AlwaysTraining(keras.layers.Dropout(0.5, name="drop"), name="scores")(features))


def normalising() -> keras.Model:
    """Build a model whose batch norm uses the statistics of each request."""
    features = keras.Input((3,), name="features")
    return keras.Model(features, AlwaysTraining(keras.layers.BatchNormalization(name="norm"), name="scores")(features))
