"""The recommender in Keras. `python -m benchmarks.recommender.keras_model SHAPE FILE.keras` writes it."""

import sys
from typing import Any

import keras
from keras import ops

from benchmarks.recommender.dlrm import DENSE, DENSE_FEATURES, HOTNESS, SCORE, SHAPES, TABLES, Shape, weights


def build(shape: Shape) -> keras.Model:
    """Build the model from Keras' own layers alone, so that its file needs no code."""

    def dense(name: str, units: int, x: Any, activation: str | None = None, use_bias: bool = True) -> Any:  # noqa: ANN401 - tensors
        return keras.layers.Dense(units, activation, use_bias, name=name)(x)

    numbers = keras.Input((DENSE_FEATURES,), name=DENSE)
    ids = [keras.Input((hot,), dtype="int32", name=name) for name, hot in zip(TABLES, HOTNESS, strict=True)]
    bottom = numbers
    for number, units in enumerate(shape.bottom):
        bottom = dense(f"bottom_{number}", units, bottom, "relu")
    found = [
        ops.sum(keras.layers.Embedding(rows, shape.width, name=f"table_{name}")(one), axis=1)
        for name, rows, one in zip(TABLES, shape.rows, ids, strict=True)
    ]
    crossed = first = ops.concatenate([bottom, *found], axis=1)
    for number in range(shape.cross_layers):
        low = dense(f"cross_{number}_down", shape.cross_rank, crossed, use_bias=False)
        crossed = first * dense(f"cross_{number}_up", shape.crossed, low) + crossed
    top = crossed
    for number, units in enumerate(shape.top):
        is_last = number == len(shape.top) - 1
        top = dense(f"top_{number}", units, top, "sigmoid" if is_last else "relu")
    return keras.Model([numbers, *ids], {SCORE: ops.squeeze(top, axis=1)})


def main(shape_name: str, file: str) -> None:
    shape = SHAPES[shape_name]
    model, values = build(shape), weights(shape)
    for layer in model.layers:
        if isinstance(layer, keras.layers.Embedding):
            layer.set_weights([values[layer.name.removeprefix("table_")]])
        elif isinstance(layer, keras.layers.Dense):
            parts = ("kernel", "bias") if layer.use_bias else ("kernel",)
            layer.set_weights([values[f"{layer.name}/{part}"] for part in parts])
    model.save(file)


if __name__ == "__main__":
    main(*sys.argv[1:])
