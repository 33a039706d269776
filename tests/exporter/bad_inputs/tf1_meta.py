"""Graphs of TPUEstimator that are damaged, do not match their checkpoint, or cannot be served."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.exporter.bad_inputs.case import Case, Change, Section, cut, fill, remove

if TYPE_CHECKING:
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef

_META = "run/model.ckpt-4.meta"
_EXPORT = f"{_META} models/digits"
_DIGITS = f"{_EXPORT} --input-tensor InfeedQueue/dequeue=image --output-tensor probabilities"
_SCORES = "graph/model.ckpt-3.meta models/scorer --input-tensor input0=x --output-tensor scores"


def make(folder: Path) -> None:
    """Train the example for a few steps."""
    from examples.tpu_estimator.train import train

    train(folder / "run", steps=4)


def _graph(model: str, inputs: int = 1) -> Change:
    """Return a change that saves another graph with operations of TPU programs, and its checkpoint, in `graph/`."""

    def change(folder: Path) -> None:
        from tests.exporter import tpu_graphs

        tpu_graphs.save(folder / "graph", getattr(tpu_graphs, model), inputs)

    return change


def _edit(change: Callable[["MetaGraphDef"], object]) -> Change:
    def apply(folder: Path) -> None:
        from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef

        graph = MetaGraphDef.FromString((folder / _META).read_bytes())
        change(graph)
        (folder / _META).write_bytes(graph.SerializeToString())

    return apply


def _make_custom(graph: "MetaGraphDef") -> None:
    next(node for node in graph.graph_def.node if node.name == "cnn/Relu").op = "CustomGelu"


def _another_graph(folder: Path) -> None:
    """Combine the graph of one model with the checkpoint of another."""
    _graph("recurrent")(folder)
    (folder / "other").mkdir()
    shutil.move(folder / "graph", folder / "kept")
    _graph("averaging")(folder)
    for file in (folder / "kept").glob("*.ckpt-3.[di]*"):
        shutil.copy(file, folder / "graph" / file.name)


SECTION = Section(
    "Graphs of TPUEstimator",
    f"`{_META}` is the training graph of a network for digits. It is replicated over TPU cores and fed by an infeed. "
    "Its checkpoint is in the same directory.",
    make,
    (
        Case("Nothing says what to serve", 2, _EXPORT),
        Case("Nothing says what to feed", 2, f"{_EXPORT} --output-tensor probabilities"),
        Case("There is no such tensor", 2,
             f"{_EXPORT} --input-tensor InfeedQueue/dequeue=image --output-tensor probability"),
        Case("An output depends on more inputs", 2, _SCORES, _graph("two_inputs", 2)),
        Case("A builder is named, too", 2, f"{_DIGITS} --model models:digits"),
        Case("The graph is cut short", 6, _DIGITS, cut(_META, 500)),
        Case("The graph is something else", 6, _DIGITS, fill(_META)),
        Case("The graph is empty", 6, _DIGITS, fill(_META, b"")),
        Case("Its checkpoint is missing", 6, _DIGITS, remove("run/*.index")),
        Case("A shard is missing", 6, _DIGITS, remove("run/*.data-00000-of-00001")),
        Case("A shard is cut short", 6, _DIGITS, cut("run/*.data-00000-of-00001", 100)),
        Case("The checkpoint is of another graph", 2, _SCORES, _another_graph),
        Case("Nothing tells which pixel values it was trained with", 2, f"{_DIGITS} --signature photo=image_bytes"),
        Case("The shape of an input differs", 2, f"{_DIGITS} --input 'image:float32[batch,28,28,1]'"),
        Case("An operation is of a library that is not here", 6, _DIGITS, _edit(_make_custom)),
        Case("An operation runs on TPUs alone", 4, _SCORES, _graph("exchanging")),
        Case("Random numbers are served", 3, _SCORES, _graph("random")),
        Case("Batch statistics have no moving average", 3, _SCORES, _graph("whitening")),
        Case("The graph is for one size of batch", 2, _SCORES, _graph("one_batch_only")),
        Case("There are no averages", 2, f"{_DIGITS} --weights ema"),
        Case("`--from` says it is a file of Keras", 6, f"{_EXPORT} --from keras"),
    ),
)  # fmt: skip
