"""A small transformer encoder for training and, with `examples.text_classifier.model:build`, for the exporter."""

from typing import Any

import keras
from keras import ops

from examples.text_classifier.data import LONGEST, PADDING, PLACES, VOCABULARY

WIDTH = 32
HEADS = 4


def build(blocks: int = 2) -> keras.Model:
    """Build `ids` int32 [batch, length], padded with 0 → `scores` float32 [batch, 3].

    Accepts any length up to 32. Attention and mean ignore padding, so servers may pad to buckets.
    """
    ids = keras.Input((None,), dtype="int32", name="ids")
    real = RealWords(name="real")(ids)
    x = keras.layers.Embedding(len(VOCABULARY) + 2, WIDTH, name="words")(ids)
    x = Positions(name="positions")(x)
    for index in range(blocks):
        x = encode(x, real, f"block{index}")
    scores = keras.layers.Dense(len(PLACES), activation="softmax", name="scores")(MeanOfReal(name="mean")([x, real]))
    return keras.Model(ids, scores, name="text_classifier")


def encode(x: Any, real: Any, name: str) -> Any:  # noqa: ANN401 - Keras tensors
    """Add one encoder block: attention to the real words of the sentence, and a small network for each word."""
    normed = keras.layers.LayerNormalization(name=f"{name}_norm1")(x)
    attention = keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS, name=f"{name}_attention")
    x = x + attention(normed, normed, attention_mask=ops.expand_dims(real, 1))
    normed = keras.layers.LayerNormalization(name=f"{name}_norm2")(x)
    hidden = keras.layers.Dense(2 * WIDTH, activation="gelu", name=f"{name}_hidden")(normed)
    return x + keras.layers.Dense(WIDTH, name=f"{name}_out")(hidden)


class RealWords(keras.layers.Layer):  # type: ignore[misc]  # keras is untyped
    """Mask of the positions that hold a word."""

    def call(self, ids: Any) -> Any:  # noqa: ANN401 - a Keras tensor
        return ids != PADDING


class Positions(keras.layers.Layer):  # type: ignore[misc]  # keras is untyped
    """Adds a learned embedding of each position."""

    def build(self, shape: tuple[int | None, ...]) -> None:
        self.table = self.add_weight(shape=(LONGEST, shape[-1]), initializer="uniform", name="table")

    def call(self, x: Any) -> Any:  # noqa: ANN401 - a Keras tensor
        return x + self.table[: ops.shape(x)[1]]


class MeanOfReal(keras.layers.Layer):  # type: ignore[misc]  # keras is untyped
    """Mean over the real words, or zero for a sentence without any."""

    def call(self, inputs: list[Any]) -> Any:  # noqa: ANN401 - a Keras tensor
        x, real = inputs
        weights = ops.expand_dims(ops.cast(real, x.dtype), -1)
        return ops.sum(x * weights, axis=1) / ops.maximum(ops.sum(weights, axis=1), 1)
