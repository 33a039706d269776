"""The outputs of an exported version, loaded in both ways that SavedModels support."""

from pathlib import Path

import numpy as np


def serve(version: Path, signature_name: str = "serving_default", /, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    """Run a signature in a session, like servers."""
    import tensorflow as tf

    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.Session(graph=graph) as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], str(version))
        signature = meta.signature_def[signature_name]
        feeds = {signature.inputs[name].name: value for name, value in inputs.items()}
        fetches = {name: info.name for name, info in signature.outputs.items()}
        outputs: dict[str, np.ndarray] = session.run(fetches, feeds)
        return outputs


def serve_rows(version: Path, rows: np.ndarray) -> np.ndarray:
    """Run a version with one input and one output, whatever their names."""
    from tests.exporter.written_graph import read_meta_graph

    (name,) = read_meta_graph(version).signature_def["serving_default"].inputs
    (answer,) = serve(version, **{name: rows}).values()
    return answer


def call(version: Path, /, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    """Run the version through tf.saved_model.load, like scripts."""
    import tensorflow as tf

    function = tf.saved_model.load(str(version)).signatures["serving_default"]
    outputs = function(**{name: tf.constant(value) for name, value in inputs.items()})
    return {name: value.numpy() for name, value in outputs.items()}
