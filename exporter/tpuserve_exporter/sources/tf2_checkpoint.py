"""Opens a TF2 object checkpoint (tf.train.Checkpoint, CheckpointManager, save_weights) for a builder's function."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuserve_exporter.errors import BuilderFailed, OptionConflict
from tpuserve_exporter.models.builder import build_trackable, is_keras_2
from tpuserve_exporter.models.keras_serving import (
    Quantized,
    change,
    described_dtype,
    is_changed,
    renew_constants,
    serve_keras,
    serve_keras_2,
)
from tpuserve_exporter.models.naming import (
    build_weights,
    check_names,
    name_outputs,
    number_outputs,
    option_spec,
    path_names,
)
from tpuserve_exporter.models.ragged import dense_function
from tpuserve_exporter.models.served_function import ServedFunction, TracedReference
from tpuserve_exporter.options.export_options import InputNaming, ModelOptions
from tpuserve_exporter.sources.checkpoint_path import find_prefix, step_of
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.sources.variables.object_graph import ROOT, ObjectGraph, read_object_graph
from tpuserve_exporter.sources.variables.object_restore import restore

if TYPE_CHECKING:
    import tensorflow as tf

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
        elif is_keras_2(self.model):
            for layer in self.model._flatten_layers(include_self=False):  # as Keras 2 does after load_weights
                layer.finalize_state()


def _build(builder: str, options: ModelOptions) -> _Built:
    import keras

    model = build_trackable(builder, options.builder_args)
    if isinstance(model, keras.Model):
        build_weights(model, options)
        return _Built(model, serve_keras(model, options), described_dtype(model))
    if is_keras_2(model):
        return _Built(model, serve_keras_2(model, options), described_dtype(model))
    function = serve_module(model, options)
    function.trace()  # many modules create their variables in their first call
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


# Arguments that select training mode. A server sets them to False.
_TRAINING = ("training", "is_training")


def serve_module(module: "tf.Module", options: ModelOptions) -> ServedFunction:
    """Return the served function of a callable module.

    Inputs come from an `input_signature` or, in order, from --input. Outputs have the names of a dictionary's keys or
    of --output. Raises BuilderFailed for a module without `__call__`, and OptionConflict if the inputs are unknown.
    """
    function = getattr(module, "__call__", None)  # noqa: B004 - the method is wanted, with its signature
    if function is None:
        raise BuilderFailed(
            f"{options.builder} returned a {type(module).__name__} without __call__, so that there is nothing to serve"
        )
    parameters = list(inspect.signature(getattr(function, "python_function", function)).parameters)
    specs = _specs(function, parameters, options.inputs)
    fixed = {name: False for name in _TRAINING if name in parameters and name not in specs}
    by_name = all(name in parameters for name in specs)

    def call(**inputs: "tf.Tensor") -> "Mapping[str, tf.Tensor]":
        if by_name:
            return _name_outputs(function(**inputs, **fixed), options.outputs)
        return _name_outputs(function(*[inputs[name] for name in specs], **fixed), options.outputs)

    return dense_function(ServedFunction(specs, call, [module]))


def _specs(
    function: Callable[..., Any], parameters: Sequence[str], namings: Sequence[InputNaming]
) -> "dict[str, tf.TensorSpec]":
    signature: Sequence[tf.TensorSpec] | None = getattr(function, "input_signature", None)
    if signature is None or any(one.dtype is not None for one in namings):
        if not namings or any(one.dtype is None for one in namings):
            raise OptionConflict(
                "the module's inputs are unknown, because its __call__ has no input_signature. Describe each with "
                "--input 'name:dtype[batch,...]'"
            )
        check_names([one.name for one in namings])
        return {one.name: option_spec(one) for one in namings}
    if namings and len(namings) != len(signature):
        raise OptionConflict(f"there are {len(namings)} --input options, but the module has {len(signature)} input(s)")
    own = [getattr(spec, "name", None) or parameters[index] for index, spec in enumerate(signature)]
    names = [one.name for one in namings] or own
    check_names(names)
    return {name: _named(name, spec) for name, spec in zip(names, signature, strict=True)}


def _named(name: str, spec: "tf.TypeSpec") -> "tf.TensorSpec | tf.RaggedTensorSpec":
    """Name the spec of an input. Raises OptionConflict for a tensor that signatures do not support."""
    import tensorflow as tf

    if isinstance(spec, tf.RaggedTensorSpec):
        return spec
    if not isinstance(spec, tf.TensorSpec):
        raise OptionConflict(
            f"input {name!r} is a {type(spec).__name__}, but signatures take only dense and ragged tensors. Let "
            "__call__ take the parts of a sparse tensor and build it with tf.sparse.SparseTensor"
        )
    return tf.TensorSpec(spec.shape, spec.dtype, name=name)


def _name_outputs(outputs: object, chosen: tuple[str, ...]) -> "dict[str, tf.Tensor]":
    import keras

    tensors = keras.tree.flatten(outputs)
    named = path_names(outputs) if isinstance(outputs, Mapping) else []
    return name_outputs(chosen or named or number_outputs(len(tensors)), tensors, "module")
