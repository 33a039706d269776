"""TF1 checkpoints, matched by name, that are damaged or do not match the model."""

import shutil
from pathlib import Path

import numpy as np

from tests.exporter.bad_inputs.case import Case, Section, cut, fill, remove
from tests.exporter.bad_inputs.tf2_checkpoint import MODELS

_SHARD = "run/model.ckpt-20.data-00000-of-00001"
_EXPORT = "run models/mlp --input 'features:float32[batch,4]'"
_MLP = f"{_EXPORT} --model models:mlp"


def make(folder: Path) -> None:
    """Save `run/` of `mlp` and Adam."""
    from tests.exporter import tf1_graphs

    (folder / "run").mkdir()
    tf1_graphs.train(folder / "run/model.ckpt")
    shutil.copy(MODELS / "graph_models.py", folder / "models.py")


def _diverge(folder: Path) -> None:
    """Save the same variables with a NaN."""
    import tensorflow as tf

    v1 = tf.compat.v1
    reader = tf.train.load_checkpoint(str(folder / "run/model.ckpt-20"))
    values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if name.startswith("mlp")}
    values["mlp/logits/bias"] = np.full(3, np.nan, np.float32)
    with tf.Graph().as_default(), v1.Session() as session:
        saver = v1.train.Saver([v1.get_variable(name, initializer=value) for name, value in values.items()])
        session.run(v1.global_variables_initializer())
        saver.save(session, str(folder / "run/model.ckpt"), 20, write_meta_graph=False)


SECTION = Section(
    "TF1 checkpoints",
    "`run` contains `model.ckpt-20` of `tf.compat.v1.train.Saver`: the variables of a network with the scopes "
    "`mlp/hidden` and `mlp/logits`, and the variables of Adam.",
    make,
    (
        Case("A shard is missing", 6, _MLP, remove(_SHARD)),
        Case("A shard is cut short", 6, _MLP, cut(_SHARD, 40)),
        Case("The index is something else", 6, _MLP, fill("run/model.ckpt-20.index")),
        Case("No builder is named", 2, _EXPORT),
        Case("No inputs are given", 2, "run models/mlp --model models:mlp"),
        Case("The builder's module is not found", 7, f"{_EXPORT} --model model:mlp"),
        Case("The builder's function is not found", 7, f"{_EXPORT} --model models:mpl"),
        Case("The builder raises", 7, f"{_EXPORT} --model models:mlp_of --model-arg classes=4"),
        Case("The builder takes other inputs", 7, f"{_MLP} --input 'more:float32[batch,4]'"),
        Case("The builder returns something else", 7, f"{_EXPORT} --model models:no_tensor"),
        Case("Shapes differ", 2, f"{_MLP} --model-arg hidden=9"),
        Case("Several things differ at once", 2, f"{_EXPORT} --model models:other"),
        Case("There are no averages", 2, f"{_MLP} --weights ema"),
        Case("Weights are NaN", 12, _MLP, _diverge),
        Case("An operation keeps more than variables", 4, f"{_EXPORT} --model models:with_table"),
        Case("`--from` says it is of TensorFlow 2", 6, f"{_MLP} --from tf2-ckpt"),
        Case("`--from` says it is a graph", 6,
             "run models/mlp --from tf1-meta --input-tensor features --output-tensor logits"),
    ),
)  # fmt: skip
