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
        Case("Missing outputs", 2, _EXPORT),
        Case("Missing inputs", 2, f"{_EXPORT} --output-tensor probabilities"),
        Case("Unknown tensor", 2,
             f"{_EXPORT} --input-tensor InfeedQueue/dequeue=image --output-tensor probability"),
        Case("Incomplete inputs", 2, _SCORES, _graph("two_inputs", 2)),
        Case("Builder for a .meta graph", 2, f"{_DIGITS} --model models:digits"),
        Case("Truncated graph", 6, _DIGITS, cut(_META, 500)),
        Case("Graph of another format", 6, _DIGITS, fill(_META)),
        Case("Empty graph", 6, _DIGITS, fill(_META, b"")),
        Case("Missing checkpoint", 6, _DIGITS, remove("run/*.index")),
        Case("Missing shard", 6, _DIGITS, remove("run/*.data-00000-of-00001")),
        Case("Truncated shard", 6, _DIGITS, cut("run/*.data-00000-of-00001", 100)),
        Case("Checkpoint of another graph", 2, _SCORES, _another_graph),
        Case("Unknown pixel values", 2, f"{_DIGITS} --signature photo=image_bytes"),
        Case("Different shape of an input", 2, f"{_DIGITS} --input 'image:float32[batch,28,28,1]'"),
        Case("Operation of an unavailable library", 6, _DIGITS, _edit(_make_custom)),
        Case("Operation that runs only on TPUs", 4, _SCORES, _graph("exchanging")),
        Case("Random numbers in the outputs", 3, _SCORES, _graph("random")),
        Case("Batch statistics without a moving average", 3, _SCORES, _graph("whitening")),
        Case("Graph with a fixed batch size", 2, _SCORES, _graph("one_batch_only")),
        Case("Missing averages", 2, f"{_DIGITS} --weights ema"),
        Case("Wrong kind: `--from keras`", 6, f"{_EXPORT} --from keras"),
    ),
)  # fmt: skip
