"""Saves the models of the zoo as SavedModels: operations in milliseconds, Keras layers and exports in seconds."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import tensorflow as tf

from tests.zoo.catalogue.layers import LAYERS
from tests.zoo.catalogue.operation import Operation
from tests.zoo.catalogue.operations import OPERATIONS

tf1 = tf.compat.v1
# The version of every model of the zoo.
VERSION: Final = "1"


def save_operations(names: Sequence[str], folder: Path) -> None:
    """Save the operations with these names, unless an earlier run has."""
    for one in OPERATIONS:
        if one.name in names and not (folder / one.name).exists():
            _save(one, folder / one.name / VERSION, with_ranks=True)


def save_unranked(names: Sequence[str], folder: Path) -> None:
    """Save the operations like `save_operations`, with inputs of unknown rank. The graph is the same."""
    for one in OPERATIONS:
        if one.name in names and not (folder / one.name).exists():
            _save(one, folder / one.name / VERSION, with_ranks=False)


def save_layers(names: Sequence[str], folder: Path) -> None:
    """Save the Keras layers with these names, unless an earlier run has."""
    import keras

    for one in LAYERS:
        if one.name not in names or (folder / one.name).exists():
            continue
        model = one.build()
        archive = keras.export.ExportArchive()
        archive.track(model)
        specs = [tf.TensorSpec(key.shape, key.dtype, key.name) for key in model.inputs]
        archive.add_endpoint("serving_default", _caller(model), specs)
        archive.write_out(str(folder / one.name / VERSION), verbose=False)


def _caller(model: Any) -> Callable[..., dict[str, Any]]:  # noqa: ANN401 - a Keras model
    """Return a function of the inputs by position. An argument with a default would become an input."""
    return lambda *inputs: {"y": model([*inputs])}


def export_layers(names: Sequence[str], folder: Path) -> None:
    """Export the Keras layers with these names with all checks, unless an earlier run has."""
    from tpuserve_exporter import export

    for one in LAYERS:
        if one.name in names and not (folder / one.name).exists():
            export(one.build(), folder / one.name, progress=False)


def _save(operation: Operation, path: Path, *, with_ranks: bool) -> None:
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        inputs = {name: tf1.placeholder(one.dtype, one.shape, name) for name, one in operation.inputs.items()}
        result = operation.build(**inputs)
        outputs = result if isinstance(result, dict) else {"y": result}
        signature = tf1.saved_model.signature_def_utils.predict_signature_def(
            inputs, {name: tf.identity(value) for name, value in outputs.items()}
        )
        if not with_ranks:
            for info in (*signature.inputs.values(), *signature.outputs.values()):
                info.tensor_shape.Clear()
                info.tensor_shape.unknown_rank = True
            _forget_ranks(graph, inputs)
        builder = tf1.saved_model.Builder(str(path))
        tables = tf1.tables_initializer() if graph.get_collection(tf1.GraphKeys.TABLE_INITIALIZERS) else None
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature}, main_op=tables)
        builder.save()


def _forget_ranks(graph: tf.Graph, inputs: dict[str, Any]) -> None:
    unknown = tf1.AttrValue(shape=tf.TensorShape(None).as_proto())
    for one in inputs.values():
        graph.get_operation_by_name(one.op.name)._set_attr("shape", unknown)
