"""Builders of models whose layers keep vocabularies, statistics, files or tables in addition to variables."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras
from keras import layers

TEXTS = ["the cat sat on the mat", "a green sea", "the dog"]
OTHER_TEXTS = ["dog green cat sea", "mat sat on the a a a a"]
AMOUNTS = np.arange(8, dtype=np.float32)[:, None]


class Mean(layers.Layer):  # type: ignore[misc]  # keras is untyped
    """Not registered with Keras, as most people's layers."""

    def call(self, x: Any) -> Any:  # noqa: ANN401 - a Keras tensor
        return keras.ops.mean(x, 1)


def text(texts: Sequence[str] = ()) -> keras.Model:
    sentence = keras.Input((), dtype="string", name="text")
    vectorize = layers.TextVectorization(max_tokens=20, output_sequence_length=6)
    if texts:
        vectorize.adapt(list(texts))
    rows = Mean(name="mean")(layers.Embedding(20, 4)(vectorize(sentence)))
    return keras.Model(sentence, layers.Dense(2, name="y")(rows))


def text_of_other_data() -> keras.Model:
    return text(OTHER_TEXTS)


def nested(texts: Sequence[str] = ()) -> keras.Model:
    """Return a model with two models as layers, whose own layers have equal names, and with adapted statistics."""
    sentence = keras.Input((), dtype="string", name="text")
    vectorize = layers.TextVectorization(max_tokens=20, output_sequence_length=3)
    if texts:
        vectorize.adapt(list(texts))
    rows = layers.Flatten()(layers.Embedding(20, 4)(vectorize(sentence)))
    for name in ("encoder", "decoder"):
        rows = keras.Sequential([layers.Dense(4, name="a"), layers.Dense(4, name="b")], name=name)(rows)
    return keras.Model(sentence, layers.Dense(2, name="y")(layers.Normalization()(rows)))


def nested_with_terms() -> keras.Model:
    return nested(["the cat", "a dog"])


def idf(texts: Sequence[str] = ()) -> keras.Model:
    """Pad the weights to more tokens than there are terms, which Keras saves but cannot read."""
    sentence = keras.Input((), dtype="string", name="text")
    vectorize = layers.TextVectorization(max_tokens=12, output_mode="tf_idf", pad_to_max_tokens=True)
    if texts:
        vectorize.adapt(list(texts))
    return keras.Model(sentence, layers.Dense(2, name="y")(vectorize(sentence)))


def idf_of_other_data() -> keras.Model:
    return idf(OTHER_TEXTS)


def bins(amounts: Any = None) -> keras.Model:  # noqa: ANN401 - numbers, or none
    amount = keras.Input((1,), name="x")
    layer = layers.Discretization(num_bins=4, output_mode="one_hot")
    if amounts is not None:
        layer.adapt(amounts)
    return keras.Model(amount, layers.Dense(2, name="y")(layer(amount)))


def bins_of_other_data() -> keras.Model:
    return bins(AMOUNTS * 10)


def prepared(scale: float = 0.5, activation: str = "relu") -> keras.Model:
    """Return a model of two columns: an amount to scale, and an identifier to hash."""
    amount, key = keras.Input((1,), name="amount"), keras.Input((1,), dtype="int64", name="key")
    hashed = layers.Hashing(4, output_mode="one_hot", salt=7)(key)
    rows = layers.Concatenate()([layers.Rescaling(scale, name="scaling")(amount), hashed])
    return keras.Model([amount, key], layers.Dense(2, activation, name="y")(layers.Dropout(0.5)(rows)))


def one_hot(terms: Sequence[str] = ()) -> keras.Model:
    """Build `x` [batch, 1] → `y` [batch, 2] with a layer whose size depends on the terms."""
    lookup = keras.layers.StringLookup(vocabulary=list(terms) or None, output_mode="one_hot")
    x = keras.Input((1,), dtype="string", name="x")
    return keras.Model(x, keras.layers.Dense(2, name="y")(lookup(x)))


def heads(first: str = "bought", second: str = "clicked") -> keras.Model:
    """Build `x` [batch, 3] → two outputs [batch, 1] of layers with these names."""
    x = keras.Input((3,), name="x")
    return keras.Model(x, [keras.layers.Dense(1, name=name)(x) for name in (first, second)])


def heads_in_other_order() -> keras.Model:
    return heads("clicked", "bought")


def heads_with_other_names() -> keras.Model:
    return heads("sold", "viewed")


def heads_without_names(others: int = 0) -> keras.Model:
    x = keras.Input((3,), name="x")
    for _ in range(others):
        keras.layers.Dense(1)(x)
    return keras.Model(x, [keras.layers.Dense(1)(x), keras.layers.Dense(1)(x)])


def prepared_with_other_scale() -> keras.Model:
    return prepared(scale=0.25)


def prepared_for_logits() -> keras.Model:
    return prepared(activation="linear")


def scaled(mean: float = 0.0) -> keras.Model:
    amount = keras.Input((1,), name="x")
    return keras.Model(amount, layers.Dense(2, name="y")(layers.Normalization(mean=mean, variance=4.0)(amount)))


class Listed(layers.Layer):  # type: ignore[misc]  # keras is untyped
    """A layer of the user: it has an array in addition to its variable, and names in a file."""

    def __init__(self, table: Sequence[float] = (0.0,) * 4, names: str = "", **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(**kwargs)
        self.table, self.names = np.array(table, np.float32), names

    def build(self, shape: Any) -> None:  # noqa: ANN401 - Keras' shapes
        self.offset = self.add_weight(shape=(), name="offset")

    def call(self, x: Any) -> Any:  # noqa: ANN401 - a Keras tensor
        return keras.ops.take(self.table, keras.ops.cast(x, "int32")) + self.offset + len(self.names)

    def save_own_variables(self, store: Any) -> None:  # noqa: ANN401 - Keras' store
        super().save_own_variables(store)
        store["table"] = self.table

    def load_own_variables(self, store: Any) -> None:  # noqa: ANN401 - Keras' store
        self.table = np.array(store["table"])
        self.offset.assign(store["0"])

    def save_assets(self, folder: str) -> None:
        Path(folder, "names.txt").write_text(self.names)

    def load_assets(self, folder: str) -> None:
        self.names = Path(folder, "names.txt").read_text()


def listed(table: Sequence[float] = (0.0,) * 4, names: str = "") -> keras.Model:
    row = keras.Input((3,), name="x")
    return keras.Model(row, layers.Dense(2, name="y")(Listed(table, names, name="listed")(row)))


class Table(tf.Module):  # type: ignore[misc]  # TensorFlow is untyped
    """A table whose entries checkpoints hold, and one whose entries they do not."""

    def __init__(self, words: Sequence[str] = ()) -> None:
        self.words = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
        initial = tf.lookup.KeyValueTensorInitializer(["a", "b"], [1.0, 2.0])
        self.fixed = tf.lookup.StaticHashTable(initial, 0.0)
        if words:
            self.words.insert(tf.constant(list(words)), tf.range(len(words), dtype=tf.int64))
        self.rows = tf.Variable(np.arange(8.0, dtype=np.float32).reshape(4, 2), name="rows")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])  # type: ignore[untyped-decorator]  # as above
    def __call__(self, word: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": tf.gather(self.rows, self.words.lookup(word) + 1) + self.fixed.lookup(word)[:, None]}


def table() -> Table:
    return Table()


def table_of_other_data() -> Table:
    return Table(["x", "y"])


def keras_2(texts: Sequence[str] = (), rows: Any = None) -> Any:  # noqa: ANN401 - a Keras 2 model is untyped
    sentence = tf_keras.Input((), dtype=tf.string, name="text")
    vectorize = tf_keras.layers.TextVectorization(max_tokens=12, output_sequence_length=4)
    if texts:
        vectorize.adapt(list(texts))
    ids = tf.cast(vectorize(sentence), tf.float32)
    norm = tf_keras.layers.Normalization()
    if rows is not None:
        norm.adapt(rows)
    return tf_keras.Model(sentence, tf_keras.layers.Dense(2, name="y")(norm(ids)))


def keras_2_with_terms() -> Any:  # noqa: ANN401 - a Keras 2 model is untyped
    """Return the model with the terms of the training and without its statistics, which checkpoints hold."""
    return keras_2(TEXTS)
