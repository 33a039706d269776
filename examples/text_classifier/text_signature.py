"""Signature from sentences to places: `--signature text=examples.text_classifier.text_signature:serve`."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from examples.text_classifier.data import LONGEST, PLACES, UNKNOWN, VOCABULARY

Call = Callable[..., Mapping[str, tf.Tensor]]


def serve(call: Call, inputs: Mapping[str, tf.TensorSpec]) -> tuple[Call, dict[str, tf.TensorSpec], list[Any]]:
    """Wrap the model: `text` string [batch] → `scores` float32 [batch, 3] and `place` string [batch].

    The host converts words to numbers before the model, and the best score to a name after it. It ignores words after
    the first 32.
    """
    words = tf.constant(VOCABULARY)
    numbers = tf.range(UNKNOWN + 1, UNKNOWN + 1 + len(VOCABULARY), dtype=tf.int64)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(words, numbers), default_value=UNKNOWN)

    def run(text: tf.Tensor) -> Mapping[str, tf.Tensor]:
        found = table.lookup(tf.strings.split(tf.strings.lower(text)))
        ids = tf.cast(found[:, :LONGEST].to_tensor(), inputs["ids"].dtype)
        scores = call(ids=ids)["scores"]
        return {"scores": scores, "place": tf.gather(tf.constant(PLACES), tf.argmax(scores, axis=1))}

    return run, {"text": tf.TensorSpec([None], tf.string)}, [table]
