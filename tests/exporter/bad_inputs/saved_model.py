"""SavedModels that are damaged, cannot run, or get options that would change them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.exporter.bad_inputs.case import Case, Change, Section, cut, fill, remove, write

_OUT = "models/scorer"
_EXPORT = f"saved {_OUT}"
_SHARD = "saved/variables/variables.data-00000-of-00001"


def make(folder: Path) -> None:
    """Save `saved/` with `Model.export`."""
    import keras

    from tests.exporter import builders

    keras.utils.set_random_seed(1)
    keras.backend.clear_session()  # restarts the numbering of layer names
    builders.tiny().export(folder / "saved", verbose=False)


def _diverge(folder: Path) -> None:
    import shutil

    from tests.exporter import builders

    model = builders.tiny()
    model.weights[0].assign(np.full((3, 4), np.nan, np.float32))
    shutil.rmtree(folder / "saved")
    model.export(folder / "saved", verbose=False)


def _number_parser(folder: Path) -> None:
    import tensorflow as tf

    parse = tf.function(lambda text: {"number": tf.strings.to_number(text)})
    signature = parse.get_concrete_function(text=tf.TensorSpec([None], tf.string))
    tf.saved_model.save(tf.Module(), str(folder / "parser"), signature)


def _module(call: Callable[[Any, Any], Any]) -> Change:
    """Return a change that saves `module/`, a SavedModel of a function of `x` [4, 3] and a variable of that shape."""

    def change(folder: Path) -> None:
        import tensorflow as tf

        module = tf.Module()
        module.state = tf.Variable(tf.zeros([4, 3]))
        function = tf.function(lambda x: {"y": call(x, module.state)}, autograph=False)
        signature = function.get_concrete_function(tf.TensorSpec([4, 3], tf.float32, name="x"))
        tf.saved_model.save(module, str(folder / "module"), signature)

    return change


def _less_mean(x: Any, state: Any) -> Any:  # noqa: ANN401 - tensors
    import tensorflow as tf

    return x - tf.reduce_mean(x, axis=0, name="batch_mean")


def _file_reader(folder: Path) -> None:
    """Save a graph without functions, because TensorFlow numbers their names."""
    import tensorflow as tf

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None, 3], "x")
        y = x * tf.strings.to_number(tf.io.read_file("scale.txt", name="scale"))
        tf.compat.v1.saved_model.simple_save(session, str(folder / "module"), {"x": x}, {"y": y})


def _drop(x: Any, state: Any) -> Any:  # noqa: ANN401 - tensors
    import tensorflow as tf

    return tf.nn.dropout(x, 0.5)


def _custom(folder: Path) -> None:
    """Replace an operation, as if a library of custom operations had been loaded."""
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    path = folder / "saved/saved_model.pb"
    saved = SavedModel.FromString(path.read_bytes())
    for function in saved.meta_graphs[0].graph_def.library.function:
        for node in function.node_def:
            if node.op == "Relu":
                node.op = "CustomGelu"
    path.write_bytes(saved.SerializeToString())


def _retag(folder: Path) -> None:
    """Give the graph the tags of a TPUEstimator's, beside one of training."""
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    path = folder / "saved/saved_model.pb"
    saved = SavedModel.FromString(path.read_bytes())
    saved.meta_graphs.append(saved.meta_graphs[0])
    for graph, tags in zip(saved.meta_graphs, (["train"], ["serve", "tpu"]), strict=True):
        graph.meta_info_def.tags[:] = tags
    path.write_bytes(saved.SerializeToString())


def _without_bias(folder: Path) -> None:
    """Save a graph of TensorFlow 1 with a Saver that omits a variable."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 3], "x")
        kernel, bias = (v1.get_variable(name, [3], use_resource=True) for name in ("kernel", "bias"))
        signature = v1.saved_model.predict_signature_def({"x": x}, {"y": x * kernel + bias})
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(folder / "module"))
        saver = v1.train.Saver([kernel])
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature}, saver=saver)
        builder.save()


def _versions(folder: Path) -> None:
    import shutil

    shutil.copytree(folder / "saved", folder / "old/2")
    (folder / "saved").rename(folder / "old/1")


SECTION = Section(
    "SavedModels",
    "`Model.export` of Keras wrote `saved`.",
    make,
    (
        Case("Truncated graph", 6, _EXPORT, cut("saved/saved_model.pb", 200)),
        Case("Graph of another format", 6, _EXPORT, fill("saved/saved_model.pb")),
        Case("Missing graph", 6, _EXPORT, remove("saved/saved_model.pb")),
        Case("Missing shard of the variables", 6, _EXPORT, remove(_SHARD)),
        Case("Truncated shard of the variables", 6, _EXPORT, cut(_SHARD, 20)),
        Case("Missing variables", 6, _EXPORT, remove("saved/variables/*")),
        Case("Graphs with other tags", 2, _EXPORT, _retag),
        Case("Graph with tags that no graph has", 2, f"{_EXPORT} --tag-set serve,tpu"),
        Case("Variable without a value", 6, "module models/module", _without_bias),
        Case("Directory of versions", 6, f"old {_OUT}", _versions),
        Case("Builder for a SavedModel", 2, f"{_EXPORT} --model models:scorer"),
        Case("Image signature for a model without images", 2, f"{_EXPORT} --signature photo=image_bytes"),
        Case("Operation of an unavailable library", 6, _EXPORT, _custom),
        Case("Operation that reads a file", 13, "module models/module", _file_reader),
        Case("NaN weights", 12, _EXPORT, _diverge),
        Case("Averages over the batch", 3, "module models/module", _module(_less_mean)),
        Case("Random numbers in the model", 3, "module models/module", _module(_drop)),
        Case("State between requests", 3, "module models/module", _module(lambda x, state: state.assign_add(x))),
        Case("Rejected made-up inputs", 9, "parser models/parser", _number_parser),
        Case("Damaged warm-up requests", 9, _EXPORT,
             write("saved/assets.extra/tf_serving_warmup_requests", "not records")),
        Case("`OUT_BASE` inside the source", 2, "saved saved/models"),
        Case("Wrong kind: `--from tf2-ckpt`", 6, f"{_EXPORT} --from tf2-ckpt --model models:scorer"),
        Case("Wrong kind: `--from orbax`", 6,
             f"{_EXPORT} --from orbax --model models:scorer --input 'x:float32[batch,3]'"),
    ),
)  # fmt: skip
