"""Model builders for `tpu_models.py` and `device_programs.py`, named on the exporter's command line.

`python benchmarks/devices/tpu_builders.py DIRECTORY BUILDER` writes a checkpoint of random weights.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import keras
import tensorflow as tf
from keras import ops

Call: TypeAlias = Callable[..., Mapping[str, tf.Tensor]]

VOCABULARY = 30522
LONGEST = 512
SIDE = 32
WORDS = ("harbour", "garden", "kitchen", "street")
UNKNOWN = len(WORDS)


def bert_base() -> keras.Model:
    """Build 12 layers of width 768, like BERT's base model: 109 million weights."""
    return _encoder(layers=12, width=768, heads=12)


def bert_tiny() -> keras.Model:
    """Build 2 layers of width 128."""
    return _encoder(layers=2, width=128, heads=2)


def resnet50() -> keras.Model:
    """Build Keras' ResNet-50 for 224 x 224 images, `image` → `predictions`.

    The outputs are logits: with random weights, their values differ more than probabilities.
    """
    image = keras.Input((224, 224, 3), name="image")
    return keras.applications.ResNet50(weights=None, input_tensor=image, classifier_activation=None)


def mlp() -> keras.Model:
    """Build `features` float32 [batch, 2048] → `scores` float32 [batch, 10], through five layers of 2048."""
    x = features = keras.Input((2048,), name="features")
    for index in range(5):
        x = keras.layers.Dense(2048, activation="relu", name=f"layer{index}")(x)
    return keras.Model(features, keras.layers.Dense(10, activation="softmax", name="scores")(x))


def lstm() -> keras.Model:
    """Build `steps` float32 [batch, 32, 64] → `scores` float32 [batch, 10], through two layers of 256."""
    steps = keras.Input((32, 64), name="steps")
    x = keras.layers.LSTM(256, return_sequences=True, name="first")(steps)
    x = keras.layers.LSTM(256, name="second")(x)
    return keras.Model(steps, keras.layers.Dense(10, activation="softmax", name="scores")(x))


def embedding() -> keras.Model:
    """Build `ids` int32 [batch, 16] → `scores` float32 [batch, 10].

    Its table has 64 MiB, which can be split over four chips.
    """
    ids = keras.Input((16,), dtype="int32", name="ids")
    x = keras.layers.Embedding(2**18, 64, name="table")(ids)
    x = keras.layers.GlobalAveragePooling1D(name="mean")(x)
    return keras.Model(ids, keras.layers.Dense(10, activation="softmax", name="scores")(x))


def photo() -> keras.Model:
    """Build `image` float32 [batch, 32, 32, 3] and `place` int32 [batch], a word's number → `scores` float32 [batch,
    10].
    """
    image = keras.Input((SIDE, SIDE, 3), name="image")
    place = keras.Input((), dtype="int32", name="place")
    x = keras.layers.Conv2D(16, 3, strides=2, activation="relu", name="conv1")(image)
    x = keras.layers.Conv2D(32, 3, strides=2, activation="relu", name="conv2")(x)
    x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
    x = keras.layers.Concatenate(name="both")([x, keras.layers.Embedding(UNKNOWN + 1, 8, name="places")(place)])
    return keras.Model([image, place], keras.layers.Dense(10, activation="softmax", name="scores")(x))


def photo_of_place(call: Call, inputs: object) -> tuple[Call, dict[str, tf.TensorSpec], list[Any]]:
    """Add host preprocessing of both inputs.

    `photo` string [batch] holds JPEG files of 32 x 32, and `place` string [batch] holds a word.
    """
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant(WORDS), tf.range(len(WORDS))), default_value=UNKNOWN
    )

    def decode(photo: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.cast(tf.io.decode_jpeg(photo, channels=3), tf.float32) / 255.0, (SIDE, SIDE, 3))

    def run(photo: tf.Tensor, place: tf.Tensor) -> Mapping[str, tf.Tensor]:
        return call(image=tf.map_fn(decode, photo, fn_output_signature=tf.float32), place=table.lookup(place))

    return run, {"photo": tf.TensorSpec([None], tf.string), "place": tf.TensorSpec([None], tf.string)}, [table]


class RealTokens(keras.layers.Layer):  # type: ignore[misc]  # keras is untyped
    """Attention mask [batch, 1, length] of a text's tokens, where the id 0 is padding."""

    def call(self, ids: Any) -> Any:  # noqa: ANN401 - a Keras tensor
        return ops.expand_dims(ids != 0, 1)


class Positions(keras.layers.Layer):  # type: ignore[misc]  # keras is untyped
    """Adds a learned embedding of each position."""

    def build(self, shape: tuple[int | None, ...]) -> None:
        self.table = self.add_weight(shape=(LONGEST, shape[-1]), initializer="uniform", name="table")

    def call(self, x: Any) -> Any:  # noqa: ANN401 - a Keras tensor
        return x + self.table[: ops.shape(x)[1]]


def _encoder(layers: int, width: int, heads: int) -> keras.Model:
    """Build `ids` int32 [batch, length], padded with 0 → `pooled` float32 [batch, width], from the first token."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    real = RealTokens(name="real")(ids)
    x = Positions(name="positions")(keras.layers.Embedding(VOCABULARY, width, name="tokens")(ids))
    x = keras.layers.LayerNormalization(name="norm")(x)
    for index in range(layers):
        attention = keras.layers.MultiHeadAttention(heads, width // heads, name=f"attention{index}")
        x = x + attention(x, x, attention_mask=real)
        x = keras.layers.LayerNormalization(name=f"norm{index}a")(x)
        wide = keras.layers.Dense(4 * width, activation="gelu", name=f"wide{index}")(x)
        x = x + keras.layers.Dense(width, name=f"narrow{index}")(wide)
        x = keras.layers.LayerNormalization(name=f"norm{index}b")(x)
    return keras.Model(ids, keras.layers.Dense(width, activation="tanh", name="pooled")(x[:, 0]))


def save(directory: Path, builder: str) -> None:
    """Save a TensorFlow 2 checkpoint, like training does."""
    keras.utils.set_random_seed(6)
    tf.train.Checkpoint(model=globals()[builder]()).save(str(directory / "ckpt"))


if __name__ == "__main__":
    save(Path(sys.argv[1]), sys.argv[2])
