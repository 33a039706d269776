"""User-defined signatures, named on the exporter's command line as `tests.exporter.signature_functions:FUNCTION`."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

Made = tuple[Callable[..., Mapping[str, tf.Tensor]], dict[str, tf.TensorSpec], list[Any]]
WORDS = ("zero", "one", "two")


def words(call: Callable[..., Mapping[str, tf.Tensor]], inputs: Mapping[str, tf.TensorSpec], unit: float = 1) -> Made:
    """Return a signature of `text` [batch], up to three words each. A table maps them to the model's one input."""
    [(name, spec)] = inputs.items()
    keys = tf.constant(WORDS)
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(keys, tf.range(len(WORDS), dtype=tf.int64)), default_value=9
    )

    def run(text: tf.Tensor) -> Mapping[str, tf.Tensor]:
        found = table.lookup(tf.strings.split(text)).to_tensor(shape=[None, spec.shape[1]])
        outputs = call(**{name: unit * tf.cast(found, spec.dtype)})
        return {**outputs, "text": text}

    return run, {"text": tf.TensorSpec([None], tf.string)}, [table]


def fails(call: object, inputs: object) -> Made:
    raise RuntimeError("no vocabulary here")


def fails_when_traced(call: object, inputs: Mapping[str, tf.TensorSpec]) -> Made:
    def run(x: tf.Tensor) -> Mapping[str, tf.Tensor]:
        return {"y": tf.reshape(x, [3, 5])}

    return run, {"x": tf.TensorSpec([None, 2], tf.float32)}, []


def lists(call: Callable[..., Mapping[str, tf.Tensor]], inputs: Mapping[str, tf.TensorSpec]) -> Made:
    """Return a signature whose outputs have no names."""
    return lambda **options: list(call(**options).values()), dict(inputs), []  # type: ignore[return-value]  # on purpose


def nothing(call: object, inputs: object) -> None:
    return None


def any_words(call: Callable[..., Mapping[str, tf.Tensor]], inputs: Mapping[str, tf.TensorSpec]) -> Made:
    """Return a signature of `text` [batch] of any length. A table maps the words, and empty texts are rejected."""
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant(WORDS), tf.range(1, 1 + len(WORDS))), default_value=4
    )

    def run(text: tf.Tensor) -> Mapping[str, tf.Tensor]:
        tf.debugging.assert_none_equal(text, "", message="no words")
        return call(ids=table.lookup(tf.strings.split(text)).to_tensor())

    return run, {"text": tf.TensorSpec([None], tf.string)}, [table]


def averaged(call: Callable[..., Mapping[str, tf.Tensor]], inputs: Mapping[str, tf.TensorSpec]) -> Made:
    """Return a signature that averages two runs of the model, like test-time augmentation with mirrored images."""

    def run(**options: tf.Tensor) -> Mapping[str, tf.Tensor]:
        once, again = call(**options), call(**{name: -value for name, value in options.items()})
        return {name: (once[name] + again[name]) / 2 for name in once}

    return run, dict(inputs), []
