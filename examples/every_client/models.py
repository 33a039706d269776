"""The models of the example: the classifier of examples/iris_saved_model, and the same for irises written as text."""

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow reads it at import.

import tensorflow as tf

from examples.every_client.question import INPUT, MODEL, SPECIES, TEXT_INPUT, TEXT_MODEL, TEXT_OUTPUT
from examples.iris_saved_model.train import train


def save_models(folder: Path) -> dict[str, Path]:
    """Train and save both models below `folder`. Return their base paths by name. Blocks for seconds."""
    trained = train(folder / MODEL / "1", steps=100)
    save_text_model(trained, folder / TEXT_MODEL / "1")
    return {MODEL: folder / MODEL, TEXT_MODEL: folder / TEXT_MODEL}


def save_text_model(trained: Path, path: Path) -> None:
    """Save a model that reads four numbers from each text. Its inputs are those that genai-perf sends."""
    module = tf.Module()
    module.classifier = tf.saved_model.load(str(trained))
    classify = module.classifier.signatures["serving_default"]

    def respond(text_input: tf.Tensor, max_tokens: tf.Tensor, stream: tf.Tensor) -> dict[str, tf.Tensor]:
        numbers = tf.strings.to_number(tf.strings.split(text_input[:, 0]).to_tensor(shape=[None, 4]))
        # Uses both other inputs, because an unused one would not be in the signature.
        text = tf.where(stream[:, 0] | (max_tokens[:, 0] != 0), classify(**{INPUT: numbers})[SPECIES], "")
        return {TEXT_OUTPUT: text[:, tf.newaxis]}

    signature = tf.function(
        respond,
        input_signature=[
            tf.TensorSpec([None, 1], tf.string, TEXT_INPUT),
            tf.TensorSpec([None, 1], tf.int32, "max_tokens"),
            tf.TensorSpec([None, 1], tf.bool, "stream"),
        ],
    )
    tf.saved_model.save(module, str(path), signatures=signature)
