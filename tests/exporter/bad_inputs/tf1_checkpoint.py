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
        Case("Missing shard", 6, _MLP, remove(_SHARD)),
        Case("Truncated shard", 6, _MLP, cut(_SHARD, 40)),
        Case("Index of another format", 6, _MLP, fill("run/model.ckpt-20.index")),
        Case("Missing builder", 2, _EXPORT),
        Case("Missing inputs", 2, "run models/mlp --model models:mlp"),
        Case("Unknown builder module", 7, f"{_EXPORT} --model model:mlp"),
        Case("Unknown builder function", 7, f"{_EXPORT} --model models:mpl"),
        Case("Exception in the builder", 7, f"{_EXPORT} --model models:mlp_of --model-arg classes=4"),
        Case("Unexpected input of the builder", 7, f"{_MLP} --input 'more:float32[batch,4]'"),
        Case("Wrong result of the builder", 7, f"{_EXPORT} --model models:no_tensor"),
        Case("Different shapes", 2, f"{_MLP} --model-arg hidden=9"),
        Case("Several differences", 2, f"{_EXPORT} --model models:other"),
        Case("Missing averages", 2, f"{_MLP} --weights ema"),
        Case("NaN weights", 12, _MLP, _diverge),
        Case("State other than variables", 4, f"{_EXPORT} --model models:with_table"),
        Case("Wrong kind: `--from tf2-ckpt`", 6, f"{_MLP} --from tf2-ckpt"),
        Case("Wrong kind: `--from tf1-meta`", 6,
             "run models/mlp --from tf1-meta --input-tensor features --output-tensor logits"),
    ),
)  # fmt: skip
