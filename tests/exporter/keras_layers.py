"""Keras layers that a user could write, and models with a large table."""

from typing import Any

import keras
import numpy as np


@keras.saving.register_keras_serializable("tests")
class Memory(keras.layers.Layer):  # type: ignore[misc]  # keras is untyped
    """Adds the last row of an array that is no variable, which its own methods save and load with NumPy."""

    def __init__(self, rows: int, **settings: Any) -> None:  # noqa: ANN401 - as Keras
        super().__init__(**settings)
        self.rows = rows
        self.values = np.zeros((rows, 4), np.float32)

    def call(self, inputs: Any) -> Any:  # noqa: ANN401 - a Keras tensor
        return keras.ops.sum(inputs, axis=-1, keepdims=True) + self.values[-1]

    def save_own_variables(self, store: dict[str, Any]) -> None:
        store["values"] = self.values

    def load_own_variables(self, store: dict[str, Any]) -> None:
        self.values = store["values"].copy()

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rows": self.rows}


@keras.saving.register_keras_serializable("tests")
class Projection(keras.layers.Layer):  # type: ignore[misc]  # keras is untyped
    """Multiplies by random numbers of a fixed seed, which it does not save."""

    def __init__(self, units: int, initializer: Any = None, **settings: Any) -> None:  # noqa: ANN401 - as Keras
        super().__init__(**settings)
        self.units = units
        self.initializer = keras.initializers.get(initializer or keras.initializers.RandomNormal(seed=42))

    def build(self, shape: tuple[int | None, ...]) -> None:
        self.matrix = self.add_weight((shape[-1], self.units), self.initializer, trainable=False)

    def call(self, inputs: Any) -> Any:  # noqa: ANN401 - a Keras tensor
        return keras.ops.matmul(inputs, self.matrix)

    def save_own_variables(self, store: dict[str, Any]) -> None:
        pass

    def load_own_variables(self, store: dict[str, Any]) -> None:
        pass

    def get_config(self) -> dict[str, Any]:
        initializer = keras.saving.serialize_keras_object(self.initializer)
        return {**super().get_config(), "units": self.units, "initializer": initializer}


@keras.saving.register_keras_serializable("tests")
class Both(keras.layers.Layer):  # type: ignore[misc]  # keras is untyped
    """Adds the outputs of two layers, which may be one."""

    def __init__(self, first: Any, second: Any, **settings: Any) -> None:  # noqa: ANN401 - Keras layers
        super().__init__(**settings)
        self.first, self.second = first, second

    def build(self, shape: tuple[int | None, ...]) -> None:
        for layer in (self.first, self.second):
            if not layer.built:
                layer.build(shape)

    def call(self, inputs: Any) -> Any:  # noqa: ANN401 - a Keras tensor
        return self.first(inputs) + self.second(keras.ops.sin(inputs))

    def get_config(self) -> dict[str, Any]:
        layers = {name: keras.saving.serialize_keras_object(getattr(self, name)) for name in ("first", "second")}
        return {**super().get_config(), **layers}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Both":
        layers = {name: keras.saving.deserialize_keras_object(config.pop(name)) for name in ("first", "second")}
        return cls(**layers, **config)


def table(rows: int, dtype: str) -> keras.Model:
    """Build `ids` [batch, 1] → `y` [batch, 4] of a table [rows, 4]."""
    ids = keras.Input((1,), dtype="int32", name="ids")
    found = keras.layers.Embedding(rows, 4, dtype=dtype)(ids)
    return keras.Model(ids, keras.layers.Reshape((4,), dtype="float32", name="y")(found))


def float32_table() -> keras.Model:
    return table(1_250_000, "float32")


def bfloat16_table() -> keras.Model:
    return table(2_500_000, "bfloat16")
