"""What an exported version answers, loaded in each of the two ways that SavedModels are."""

from pathlib import Path

import numpy as np


def serve(version: Path, signature_name: str = "serving_default", /, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    """In a session, as servers load it."""
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
    """As `serve`, of a version with one input and one output, whatever they are called."""
    from tests.exporter.written_graph import read_meta_graph

    (name,) = read_meta_graph(version).signature_def["serving_default"].inputs
    (answer,) = serve(version, **{name: rows}).values()
    return answer


def call(version: Path, /, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    """By Python, as scripts load it."""
    import tensorflow as tf

    function = tf.saved_model.load(str(version)).signatures["serving_default"]
    outputs = function(**{name: tf.constant(value) for name, value in inputs.items()})
    return {name: value.numpy() for name, value in outputs.items()}
