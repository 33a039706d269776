"""SavedModels that parse tf.Examples, for tests of Classify, Regress and MultiInference."""

from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

CLASSIFY = "tensorflow/serving/classify"
REGRESS = "tensorflow/serving/regress"


def example(**features: float | str) -> tf.train.Example:
    """Return an Example with one value per feature: numbers as floats, text as bytes."""
    made = tf.train.Example()
    for name, value in features.items():
        feature = made.features.feature[name]
        if isinstance(value, str):
            feature.bytes_list.value.append(value.encode())
        else:
            feature.float_list.value.append(value)
    return made


def save_example_model(path: Path) -> Path:
    """Save a version like TensorFlow 1, with method names and one placeholder for all signatures.

    Features: `x` (float), `bonus` (float, 0 by default). `serving_default` computes the regression x / 2 + 2 + bonus as
    [n, 1], and `flat` as [n]. `classify` returns the classes low and high with scores x and 1 - x, `scores` and
    `classes` only one of the two outputs. The other signatures are invalid in different ways.
    """
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        serialized = tf.compat.v1.placeholder(tf.string, [None], "tf_example")
        spec = {
            "x": tf.io.FixedLenFeature([1], tf.float32),
            "bonus": tf.io.FixedLenFeature([1], tf.float32, default_value=[0.0]),
        }
        parsed = tf.io.parse_example(serialized, spec)
        x = parsed["x"]
        y = tf.identity(x / 2 + 2 + parsed["bonus"], "y")
        classes = tf.tile(tf.constant([["low", "high"]]), [tf.shape(x)[0], 1], "classes")
        scores = tf.concat([x, 1 - x], 1, "scores")
        signatures = {
            "serving_default": _signature(serialized, REGRESS, outputs=y),
            "flat": _signature(serialized, REGRESS, outputs=tf.squeeze(y, 1, "flat")),
            "classify": _signature(serialized, CLASSIFY, classes=classes, scores=scores),
            "scores": _signature(serialized, CLASSIFY, scores=scores),
            "classes": _signature(serialized, CLASSIFY, classes=classes),
            "wide_regression": _signature(serialized, REGRESS, outputs=scores),
            "double_regression": _signature(serialized, REGRESS, outputs=tf.cast(y, tf.float64)),
            "short_regression": _signature(serialized, REGRESS, outputs=y[:1]),
            "odd_regression": _signature(serialized, REGRESS, other=y),
            "flat_classes": _signature(serialized, CLASSIFY, classes=classes[:, 0]),
            "number_classes": _signature(serialized, CLASSIFY, classes=scores),
            "double_scores": _signature(serialized, CLASSIFY, scores=tf.cast(scores, tf.float64)),
            "flat_scores": _signature(serialized, CLASSIFY, scores=scores[:, 0]),
            "short_classes": _signature(serialized, CLASSIFY, classes=classes[:1]),
            "short_scores": _signature(serialized, CLASSIFY, scores=scores[:1]),
            "uneven": _signature(serialized, CLASSIFY, classes=classes, scores=x),
            "three_outputs": _signature(serialized, CLASSIFY, classes=classes, scores=scores, other=y),
            "odd_classification": _signature(serialized, CLASSIFY, other=y),
            "raw": _signature(x, "tensorflow/serving/predict", "x", y=x / 2 + 2),
            "two_inputs": tf.compat.v1.saved_model.signature_def_utils.build_signature_def(
                _infos({"inputs": serialized, "more": x}), _infos({"outputs": y}), REGRESS
            ),
        }
        builder = tf.compat.v1.saved_model.Builder(str(path))
        builder.add_meta_graph_and_variables(session, ["serve"], signatures)
        builder.save()
    return path


def save_native_example_model(path: Path) -> Path:
    """Save like TensorFlow 2: no method names, and a placeholder for each signature. See `save_example_model`."""
    module = tf.Module()
    serialized = [tf.TensorSpec([None], tf.string, "inputs")]

    def x_of(inputs: tf.Tensor) -> tf.Tensor:
        return tf.io.parse_example(inputs, {"x": tf.io.FixedLenFeature([1], tf.float32)})["x"]

    def classify(inputs: tf.Tensor) -> Mapping[str, tf.Tensor]:
        x = x_of(inputs)
        classes = tf.tile(tf.constant([["low", "high"]]), [tf.shape(x)[0], 1])
        return {"classes": classes, "scores": tf.concat([x, 1 - x], 1)}

    module.regress = tf.function(lambda inputs: {"outputs": x_of(inputs) / 2 + 2}, input_signature=serialized)
    module.classify = tf.function(classify, input_signature=serialized)
    signatures = {"serving_default": module.regress, "classify": module.classify}
    tf.saved_model.save(module, str(path), signatures=signatures)
    return path


def _signature(tensor: tf.Tensor, method_name: str, alias: str = "inputs", **outputs: tf.Tensor) -> object:
    return tf.compat.v1.saved_model.signature_def_utils.build_signature_def(
        _infos({alias: tensor}), _infos(outputs), method_name
    )


def _infos(tensors: Mapping[str, tf.Tensor]) -> dict[str, object]:
    return {alias: tf.compat.v1.saved_model.utils.build_tensor_info(tensor) for alias, tensor in tensors.items()}
