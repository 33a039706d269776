"""Opens a TF2 object checkpoint (tf.train.Checkpoint, CheckpointManager, save_weights) for a builder's model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.models.builder import build_trackable, is_keras_2
from tpuserve_exporter.models.keras_inputs import build_weights
from tpuserve_exporter.models.keras_serving import change, described_dtype, is_changed, serve_keras, serve_keras_2
from tpuserve_exporter.models.module_serving import build_variables, serve_module
from tpuserve_exporter.models.normalization import renew_constants
from tpuserve_exporter.models.quantization import Quantized
from tpuserve_exporter.models.served_function import ServedFunction, TracedReference
from tpuserve_exporter.options.export_options import ModelOptions
from tpuserve_exporter.sources.checkpoint_path import find_prefix, step_of
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.sources.variables.object_graph import ROOT, ObjectGraph, read_object_graph
from tpuserve_exporter.sources.variables.object_restore import restore

_STEP_NAMES = ("step", "global_step", "iterations", "_iterations")


def open_source(source: Path, options: ModelOptions) -> OpenedSource:
    """Build, restore and name the model. `source` is a directory, a prefix or an `.index` file.

    Raises OptionConflict, SourceUnreadable, BuilderFailed, or CheckpointMismatch with a report of the mismatches.
    """
    if options.builder is None:
        raise OptionConflict(
            "a checkpoint contains no model. Name the function that builds it with --model pkg.module:function"
        )
    graph = read_object_graph(find_prefix(source))
    built = _build(options.builder, options)
    report = restore(built.model, graph, options)
    built.settle()
    served = _build_to_compute(options.builder, graph, options) if is_changed(options) else built
    return OpenedSource(
        kind="tf2-ckpt",
        name=graph.prefix.name,
        model=served.function,
        reference=TracedReference(built.function),
        compute_dtype=served.compute_dtype,
        step=read_step(graph),
        builder=options.builder,
        restore=report,
        quantized=served.quantized,
    )


@dataclass(frozen=True, slots=True)
class _Built:
    """The builder's model and its served function. `compute_dtype` is None if only the graph shows it."""

    model: Any
    function: ServedFunction
    compute_dtype: str | None
    quantized: Quantized | None = None

    def settle(self) -> None:
        """Update the model's constants after the variables are set."""
        import keras

        if isinstance(self.model, keras.Model):
            renew_constants(self.model)


def _build(builder: str, options: ModelOptions) -> _Built:
    """Return a model with all of its variables, not restored."""
    import keras

    model = build_trackable(builder, options.builder_args)
    if isinstance(model, keras.Model):
        build_weights(model, options)
        return _Built(model, serve_keras(model, options), described_dtype(model))
    if is_keras_2(model):
        return _Built(model, serve_keras_2(model, options), described_dtype(model))
    function = serve_module(model, options)
    build_variables(function)
    return _Built(model, function, None)


def _build_to_compute(builder: str, graph: ObjectGraph, options: ModelOptions) -> _Built:
    """Return a second model with --compute-dtype and --int8 applied. Raises OptionConflict unless Keras 3 built it."""
    import keras

    model = _build(builder, options).model
    if not isinstance(model, keras.Model):
        raise OptionConflict("--compute-dtype and --int8 apply only to Keras 3 models. Set the dtype in the builder")
    restore(model, graph, options)
    quantized = change(model, options)
    return _Built(model, serve_keras(model, options), described_dtype(model), quantized)


def read_step(graph: ObjectGraph) -> int | None:
    """Return the training step, or None.

    It is a step variable at the root, the optimizer's iteration count, or the number in the checkpoint's name.
    """
    holders = [graph.children[ROOT], graph.children.get(graph.children[ROOT].get("optimizer", -1), {})]
    for children in holders:
        for name in _STEP_NAMES:
            stored = graph.variables.get(children.get(name, -1))
            if stored is not None and stored.shape == () and stored.dtype in ("int32", "int64"):
                return int(graph.read(stored))
    return step_of(graph.prefix)
