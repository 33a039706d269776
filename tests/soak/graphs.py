"""SavedModels of the soak. Their answers prove the version and the request that they belong to."""

from pathlib import Path

import tensorflow as tf

from tests.soak.question import BASE, CLASSIFY, FEATURE, REGRESS, REGRESS_MODULUS, TRIPLED
from tests.support.saved_models import write_manifest

tf1 = tf.compat.v1
_ROWS = {"batch_sizes": [1, 2, 4, 8, 16], "rows_independent": True}
_LENGTHS = [4, 8, 16]


def save_counted(path: Path, version: int) -> Path:
    """Save a model that puts `version` into each answer.

    `serving_default`: x (int64 [?]), text (string [?]) -> y = x * (BASE + version), same = "v{version}:{text}".
    `classify` and `regress` take tf.Examples with the feature `number`. `classify` answers the class
    "v{version}:{number}" with the score `version`, and `regress` number % REGRESS_MODULUS + REGRESS_MODULUS * version.
    """
    with tf.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.int64, [None], "x")
        text = tf1.placeholder(tf.string, [None], "text")
        examples = tf1.placeholder(tf.string, [None], "examples")
        number = tf.io.parse_example(examples, {FEATURE: tf.io.FixedLenFeature([1], tf.int64)})[FEATURE]
        of_version = f"v{version}:"
        classes = tf.strings.join([of_version, tf.as_string(number)])
        scores = tf.fill(tf.shape(number), float(version))
        value = tf.cast(number % REGRESS_MODULUS, tf.float32) + float(REGRESS_MODULUS * version)
        signatures = {
            "serving_default": _signature(
                {"x": x, "text": text}, {"y": x * (BASE + version), "same": tf.strings.join([of_version, text])}
            ),
            CLASSIFY: _signature({"inputs": examples}, {"classes": classes, "scores": scores}, CLASSIFY),
            REGRESS: _signature({"inputs": examples}, {"outputs": value}, REGRESS),
        }
        _save(path, session, signatures)
    write_manifest(path, signatures=dict.fromkeys(signatures, _ROWS))
    return path


def save_tripled(path: Path) -> Path:
    """Save the first step of the ensemble: x (int64 [?]) -> tripled = TRIPLED * x."""
    with tf.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.int64, [None], "x")
        _save(path, session, {"serving_default": _signature({"x": x}, {"tripled": TRIPLED * x})})
    write_manifest(path, signatures={"serving_default": _ROWS})
    return path


def save_sequences(path: Path) -> Path:
    """Save a model of sequences: ids (int64 [?, ?]) -> doubled = 2 * ids, total (int64 [?]), the sum of each row."""
    with tf.Graph().as_default(), tf1.Session() as session:
        ids = tf1.placeholder(tf.int64, [None, None], "ids")
        outputs = {"doubled": 2 * ids, "total": tf.reduce_sum(ids, axis=1)}
        _save(path, session, {"serving_default": _signature({"ids": ids}, outputs)})
    write_manifest(path, signatures={"serving_default": {**_ROWS, "sequence_buckets": _LENGTHS}})
    return path


def _save(path: Path, session: object, signatures: dict[str, object]) -> None:
    builder = tf1.saved_model.Builder(str(path))
    builder.add_meta_graph_and_variables(session, ["serve"], signatures)
    builder.save()


def _signature(inputs: dict[str, tf.Tensor], outputs: dict[str, tf.Tensor], method: str = "predict") -> object:
    signature = tf1.saved_model.signature_def_utils.predict_signature_def(inputs, outputs)
    signature.method_name = f"tensorflow/serving/{method}"
    return signature
