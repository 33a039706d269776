"""A TF2 object checkpoint (tf.train.Checkpoint, CheckpointManager, save_weights) restored into a builder's model."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_exporter.builder import build_model
from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.keras_inputs import build_weights
from tpuserve_exporter.keras_serving import described_dtype, serve_keras, with_compute_dtype
from tpuserve_exporter.normalization import renew_constants
from tpuserve_exporter.options import ModelOptions
from tpuserve_exporter.served_function import TracedReference
from tpuserve_exporter.sources.checkpoint_path import find_prefix
from tpuserve_exporter.sources.object_graph import ROOT, ObjectGraph, read_object_graph
from tpuserve_exporter.sources.object_restore import restore
from tpuserve_exporter.sources.opened import OpenedSource

if TYPE_CHECKING:
    import keras

    from tpuserve_exporter.restore_report import RestoreReport

_STEP_NAMES = ("step", "global_step", "iterations", "_iterations")


def open_source(source: Path, options: ModelOptions) -> OpenedSource:
    """Build, restore and name. `source` is a directory, a prefix or an `.index` file.

    Raises SourceUnreadable, BuilderFailed, and CheckpointMismatch with the report of what does not fit.
    """
    if options.builder is None:
        raise OptionConflict(
            "a checkpoint holds no model: name the function that builds it, --model pkg.module:function"
        )
    graph = read_object_graph(find_prefix(source))
    model, report = _build_and_restore(options.builder, graph, options)
    served = model
    if options.compute_dtype != "keep":
        served = with_compute_dtype(_build_and_restore(options.builder, graph, options)[0], options.compute_dtype)
    return OpenedSource(
        kind="tf2-ckpt",
        name=graph.prefix.name,
        model=serve_keras(served, options),
        reference=TracedReference(serve_keras(model, options)),
        compute_dtype=described_dtype(served),
        step=read_step(graph),
        builder=options.builder,
        restore=report,
    )


def _build_and_restore(builder: str, graph: ObjectGraph, options: ModelOptions) -> "tuple[keras.Model, RestoreReport]":
    model = build_model(builder, options.builder_args)
    build_weights(model, options)
    report = restore(model, graph, options)
    renew_constants(model)
    return model, report


def read_step(graph: ObjectGraph) -> int | None:
    """The training step: a variable of that name at the root, the optimizer's count, or the checkpoint's number."""
    holders = [graph.children[ROOT], graph.children.get(graph.children[ROOT].get("optimizer", -1), {})]
    for children in holders:
        for name in _STEP_NAMES:
            stored = graph.variables.get(children.get(name, -1))
            if stored is not None and stored.shape == () and stored.dtype in ("int32", "int64"):
                return int(graph.read(stored))
    number = re.search(r"-(\d+)$", graph.prefix.name)
    return int(number[1]) if number else None
