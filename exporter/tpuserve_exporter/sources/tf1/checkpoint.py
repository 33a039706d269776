"""Opens a TF1 checkpoint (tf.compat.v1.train.Saver) and restores it by name into the graph of a builder's function."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpuserve_exporter.errors import BuilderFailed, OptionConflict
from tpuserve_exporter.models.builder import builder_failure, check_arguments, find_builder
from tpuserve_exporter.models.naming import check_names, name_outputs, option_spec
from tpuserve_exporter.options.export_options import ModelOptions
from tpuserve_exporter.sources.checkpoint_path import find_prefix
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.sources.tf1.graph import SessionReference, V1Graph, cut_graph
from tpuserve_exporter.sources.tf1.name_based import read_checkpoint, restore
from tpuserve_exporter.terms.signature import Array

if TYPE_CHECKING:
    import tensorflow as tf


def open_source(source: Path, options: ModelOptions) -> OpenedSource:
    """Build the graph and restore it. `source` is a directory, a prefix or an `.index` file.

    Raises SourceUnreadable, OptionConflict, BuilderFailed, or CheckpointMismatch with a report of the mismatches.
    """
    if options.builder is None:
        raise OptionConflict(
            "a checkpoint contains no model. Name the function of tensors that builds it with --model "
            "pkg.module:function, or use the .meta file next to it"
        )
    if options.compute_dtype != "keep":
        raise OptionConflict("a TF1 graph sets its own dtypes. Omit --compute-dtype")
    checkpoint = read_checkpoint(find_prefix(source), options)
    built = build_graph(options.builder, options)
    graph = built.served
    values, report = restore(checkpoint, graph.variables(), options, f"the graph that {options.builder} builds", built)
    return OpenedSource(
        kind="tf1-ckpt",
        name=checkpoint.prefix.name,
        model=graph.serve(values),
        reference=SessionReference(graph, values),
        step=checkpoint.step(),
        builder=options.builder,
        restore=report,
    )


@dataclass(frozen=True, slots=True)
class BuiltGraph:
    """The graph that a builder made, and the part of it that is served."""

    graph: "tf.Graph"
    served: V1Graph

    def initialize(self, names: Sequence[str]) -> dict[str, Array]:
        """Return the values with which the builder initializes the variables `names`."""
        import tensorflow as tf

        variables = self.graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        with self.graph.as_default(), tf.compat.v1.Session(graph=self.graph) as session:
            initial = {one.op.name: one.initial_value for one in variables if one.op.name in names}
            values: dict[str, Array] = session.run(initial)
            return values


def build_graph(builder: str, options: ModelOptions) -> BuiltGraph:
    """Call the builder with a placeholder for each --input, by keyword. Raises BuilderFailed or OptionConflict."""
    import tensorflow as tf

    function = find_builder(builder)
    check_arguments(builder, function, options.builder_args)
    specs = _specs(function, options)
    with tf.Graph().as_default() as graph:
        arguments = {
            name: tf.compat.v1.placeholder(spec.dtype, spec.shape, name=f"input_{name}") for name, spec in specs.items()
        }
        try:
            outputs = function(**arguments, **options.builder_args)
        except Exception as error:  # the user's code
            raise builder_failure(builder, error) from error
        # Each output gets a separate node, because one tensor may be two outputs, or an input.
        named = {name: tf.identity(one) for name, one in _name_outputs(builder, outputs, options.outputs).items()}
        feeds = {name: tensor.name for name, tensor in arguments.items()}
        fetches = {name: tensor.name for name, tensor in named.items()}
        variables = [one.to_proto() for one in graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)]
        return BuiltGraph(graph, cut_graph(graph.as_graph_def(), specs, feeds, fetches, variables))


def _specs(function: Any, options: ModelOptions) -> "dict[str, tf.TensorSpec]":  # noqa: ANN401 - any callable
    if not options.inputs or any(one.dtype is None for one in options.inputs):
        parameters = [name for name in _parameters(function) if name not in options.builder_args]
        example = "".join(f" --input '{name}:DTYPE[batch,...]'" for name in parameters) or " --input ..."
        raise OptionConflict(f"the inputs of the --model function are unknown. Describe each with{example}")
    check_names([one.name for one in options.inputs])
    return {one.name: option_spec(one) for one in options.inputs}


def _parameters(function: Any) -> list[str]:  # noqa: ANN401 - any callable
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a callable written in C
        return []
    return [one.name for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]


def _name_outputs(builder: str, outputs: object, chosen: Sequence[str]) -> "dict[str, tf.Tensor]":
    """Name the outputs: keys of a dictionary, `output_0`… for a list, or `outputs`. --output renames them."""
    import tensorflow as tf

    if isinstance(outputs, Mapping):
        named = dict(outputs)
    elif isinstance(outputs, list | tuple):
        named = {f"output_{index}": tensor for index, tensor in enumerate(outputs)}
    else:
        named = {"outputs": outputs}
    wrong = next((one for one in named.values() if not isinstance(one, tf.Tensor)), None)
    if wrong is not None or not named:
        raise BuilderFailed(
            f"{builder} returned {type(outputs if wrong is None else wrong).__name__}. A function for a TF1 "
            "checkpoint returns a tensor, or tensors in a dictionary or list"
        )
    if not chosen:
        return named
    return name_outputs(chosen, list(named.values()))
