"""Builders of Keras models, valid and invalid: a user's `models.py`."""

from typing import Any

import keras

from tests.exporter import builders

scorer = builders.tiny
with_extra = builders.tiny_with_extra
headless = builders.headless
subclassed = builders.subclassed
inverting = builders.inverting
pictures = builders.pictures


def scorer_of(features: int) -> keras.Model:
    if features != 3:
        raise ValueError(f"trained for 3 features, not {features}")
    return scorer()


def colours(*terms: str) -> keras.Model:
    colour = keras.Input((1,), dtype="string", name="colour")
    lookup = keras.layers.StringLookup(name="lookup")
    if terms:
        lookup.adapt([[term] for term in terms])
    return keras.Model(colour, keras.layers.Embedding(4, 2, name="scores")(lookup(colour)))


def other_colours() -> keras.Model:
    return colours("blue", "red", "green")


def no_model() -> dict[str, int]:
    return {"units": 4}


class Rounded(keras.layers.Layer):  # type: ignore[misc]  # keras is untyped
    """A layer that adds an integer bias."""

    def build(self, shape: Any) -> None:  # noqa: ANN401 - a shape as Keras has it
        self.bias = self.add_weight(shape=(2,), dtype="int32", name="bias", initializer="zeros", trainable=False)

    def call(self, x: Any) -> Any:  # noqa: ANN401 - a Keras tensor
        return x + keras.ops.cast(self.bias, x.dtype)


class Unsteady(keras.layers.Layer):  # type: ignore[misc]  # keras is untyped
    """A layer that adds the number of its traces, so that every trace is a different function."""

    traces = 0

    def call(self, x: Any) -> Any:  # noqa: ANN401 - a Keras tensor
        type(self).traces += 1
        return x + float(self.traces)


def unsteady() -> keras.Model:
    features = keras.Input((3,), name="features")
    return keras.Model(features, Unsteady(name="scores")(features))


def other() -> keras.Model:
    """Return a variant of `scorer`: two different shapes, a different dtype, one variable less and two more."""
    features = keras.Input((3,), name="features")
    hidden = keras.layers.Dense(5, name="hidden")(features)
    return keras.Model(features, Rounded(name="scores")(keras.layers.Dense(2, name="extra")(hidden)))
