"""Opens the `.meta` graph that TF1 training writes with its checkpoint. Removes training and TPU operations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_exporter.dataflow.function_inlining import inline_calls
from tpuserve_exporter.dataflow.graph_walk import node_of
from tpuserve_exporter.errors import CheckpointMismatch, OptionConflict, SourceUnreadable, TrainingMode
from tpuserve_exporter.models.keras_inputs import check_distinct, check_names, describe_spec, option_spec
from tpuserve_exporter.options.export_options import ModelOptions, TensorNaming
from tpuserve_exporter.signature import Array
from tpuserve_exporter.sources.checkpoint_path import find_prefix
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.sources.tf1.batch_freedom import check_free, check_runs, free_reshapes, free_row_counts
from tpuserve_exporter.sources.tf1.graph import SessionReference, V1Graph, cut_graph, variable_names
from tpuserve_exporter.sources.tf1.graph_tensors import GraphTensors, find_entries
from tpuserve_exporter.sources.tf1.name_based import read_checkpoint, restore
from tpuserve_exporter.sources.tf1.tpu_surgery import (
    leave_training_loop,
    reached,
    remove_tpu_operations,
    replace_inputs,
)
from tpuserve_exporter.sources.tf1.training_mode import find_random, stop_training
from tpuserve_exporter.sources.tf1.training_switch import set_to_inference
from tpuserve_exporter.sources.unsafe_operations import check_graph

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.variable_pb2 import VariableDef
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef

_PLACEHOLDER = "input_of_signature/"


def open_source(source: Path, options: ModelOptions) -> OpenedSource:
    """Cut the graph and restore it. `source` is a .meta file, or a prefix or directory with one.

    Raises SourceUnreadable, OptionConflict, CannotLower, TrainingMode, UnsafeOperation, or CheckpointMismatch with a
    report of the mismatches.
    """
    _check_options(options)
    meta = source if source.suffix == ".meta" else _with_suffix(find_prefix(source), ".meta")
    meta_graph = read_meta_graph(meta)
    prefix = meta.with_suffix("")
    checkpoint = read_checkpoint(prefix, options)
    prepared = prepare(meta_graph, options)
    check_graph(meta.name, prepared.as_built.graph_def, options.allowed_ops)
    variables, what = prepared.served.variables(), f"the graph of {meta.name}"
    values, report = restore(
        checkpoint, variables, options, what, NoInitialValues(), variable_names(meta_graph.graph_def)
    )
    if prepared.built_for is not None:
        check_runs(prepared.served, values, prepared.built_for)
    return OpenedSource(
        kind="tf1-meta",
        name=meta.name,
        model=prepared.served.serve(values),
        reference=SessionReference(prepared.as_built, values, prepared.rows),
        step=checkpoint.step(),
        restore=replace(report, notes=(*report.notes, *prepared.notes)),
    )


def _check_options(options: ModelOptions) -> None:
    if options.builder is not None:
        raise OptionConflict("a .meta file has its own graph. Omit --model, or export the checkpoint without .meta")
    if options.compute_dtype != "keep":
        raise OptionConflict("a TF1 graph sets its own dtypes. Omit --compute-dtype")
    if options.outputs:
        raise OptionConflict(
            "--output does not apply to a .meta graph. Name its outputs with --output-tensor TENSOR=NAME"
        )


def _with_suffix(prefix: Path, suffix: str) -> Path:
    return prefix.with_name(prefix.name + suffix)


def read_meta_graph(meta: Path) -> "MetaGraphDef":
    """Return the contents of a .meta file, whose checkpoint must be next to it. Raises SourceUnreadable."""
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef

    index = meta.with_suffix(".index")
    if not meta.is_file():
        raise SourceUnreadable(
            f"there is no {meta.name} next to {index.name}. Name the function that builds the graph with --model"
        )
    if not index.is_file() and not meta.with_suffix("").is_file():
        raise SourceUnreadable(
            f"{meta.name} is a graph without values. Its {index.name} and .data files must be in the same directory"
        )
    try:
        meta_graph = MetaGraphDef.FromString(meta.read_bytes())
    except DecodeError as error:
        raise SourceUnreadable(f"cannot read {meta.name}: it is truncated or not a MetaGraphDef") from error
    if not meta_graph.graph_def.node:
        raise SourceUnreadable(f"{meta.name} contains no graph")
    return meta_graph


def _read_variables(meta_graph: "MetaGraphDef") -> "list[VariableDef]":
    """Return the variable definitions of the file, which describe the slices of partitioned variables."""
    from tensorflow.core.framework.variable_pb2 import VariableDef

    return [VariableDef.FromString(one) for one in meta_graph.collection_def["variables"].bytes_list.value]


@dataclass(frozen=True, slots=True)
class NoInitialValues:
    """No initial values: a graph from a file is not initialized, so the checkpoint must hold all served variables."""

    def initialize(self, names: Sequence[str]) -> Mapping[str, Array]:
        raise CheckpointMismatch(
            f"--allow-missing: the values of a .meta graph come only from the checkpoint, which has none for {names[0]}"
        )


@dataclass(frozen=True, slots=True)
class Prepared:
    """A graph to serve, and the same graph as training built it.

    `built_for` is the batch size of training, if the graph has one. `rows` is the only batch size that `as_built`
    takes, or None if it takes any.
    """

    served: V1Graph
    as_built: V1Graph
    built_for: int | None
    rows: int | None
    notes: tuple[str, ...]


def prepare(meta_graph: "MetaGraphDef", options: ModelOptions) -> Prepared:
    """Return the graph from --input-tensor to --output-tensor, without TPU and training operations, and notes.

    Raises:
        OptionConflict: if tensors are missing or do not fit. The message lists likely tensors.
        SourceUnreadable: if TensorFlow does not know an operation, or the graph is damaged.
        CannotLower: if an operation does not run here.
        TrainingMode: if a training operation cannot be removed.
    """
    sums = {node.name for node in meta_graph.graph_def.node if node.op == "CrossReplicaSum"}
    plain = remove_tpu_operations(meta_graph.graph_def)
    tensors = GraphTensors(plain)
    fetches, inputs = _fetches(tensors, options), _inputs(tensors, options)
    replace_inputs(plain, {tensor: (f"{_PLACEHOLDER}{spec.name}", spec) for tensor, spec in inputs.items()})
    plain, inlined = inline_calls(plain, list(fetches.values()))
    fetches = dict(zip(fetches, map(_with_number, inlined), strict=True))
    fetched = [node_of(tensor) for tensor in fetches.values()]
    notes = set_to_inference(plain, fetched)
    leave_training_loop(plain, fetched)
    notes += stop_training(plain, fetched)
    _check_fed(plain, tensors, options, fetched)
    if summed := sorted(sums & {node.name for node in reached(plain, fetched)}):
        notes.append(f"sums over replicas become sums over one replica: {', '.join(summed)}")
    specs = {str(spec.name): spec for spec in inputs.values()}
    feeds = {name: f"{_PLACEHOLDER}{name}:0" for name in specs}
    as_built = cut_graph(plain, specs, feeds, fetches, _read_variables(meta_graph))
    if unused := [name for name in specs if name not in as_built.feeds]:
        raise OptionConflict(f"--input-tensor: no output depends on {', '.join(unused)}. Omit it")
    return _free_rows(as_built, tensors, {str(spec.name): tensor for tensor, spec in inputs.items()}, notes)


def _free_rows(as_built: V1Graph, tensors: GraphTensors, names: Mapping[str, str], notes: Sequence[str]) -> Prepared:
    """Let a graph take any batch size, if training built it for one and its inputs' first dimension is free."""
    rows = {tensors.rows(names[name]) for name, spec in as_built.inputs.items() if spec.shape[:1] == [None]}
    fixed = next(iter(rows), None)
    if fixed is None or len(rows) > 1:
        return Prepared(as_built, as_built, None, None, tuple(notes))
    counted, counts = free_row_counts(as_built, fixed)
    served, reshapes = free_reshapes(counted, fixed)
    check_free(served, fixed)
    return Prepared(served, as_built, fixed, fixed if counts or reshapes else None, tuple(notes))


def _with_number(tensor: str) -> str:
    return tensor if ":" in tensor else f"{tensor}:0"


def _fetches(tensors: GraphTensors, options: ModelOptions) -> dict[str, str]:
    """Return the tensors to serve, by their names in the signature."""
    if not options.output_tensors:
        raise OptionConflict(
            "no outputs are named. Use --output-tensor TENSOR[=NAME]. Likely outputs: "
            f"{tensors.describe(tensors.likely_outputs()) or 'none'}"
        )
    for naming in options.output_tensors:
        tensors.check("--output-tensor", naming.tensor)
        if naming.tensor in {one.tensor for one in options.input_tensors}:
            raise OptionConflict(f"{naming.tensor} is both an --input-tensor and an --output-tensor")
    check_distinct("output", [naming.name for naming in options.output_tensors])
    return {one.name: _with_number(one.tensor) for one in options.output_tensors}


def _inputs(tensors: GraphTensors, options: ModelOptions) -> "dict[str, tf.TensorSpec]":
    """Return the spec of each input by the graph's tensor that it replaces. The spec has the signature's name."""
    outputs = [naming.tensor for naming in options.output_tensors]
    if not options.input_tensors:
        raise OptionConflict(
            "no inputs are named. Use --input-tensor TENSOR[=NAME]. The outputs depend on "
            f"{tensors.describe(tensors.likely_inputs(outputs)) or 'no input'}"
        )
    check_distinct("input", [naming.name for naming in options.input_tensors])
    check_names([naming.name for naming in options.input_tensors])
    unknown = {one.name for one in options.inputs} - {one.name for one in options.input_tensors}
    if unknown:
        raise OptionConflict(f"--input {min(unknown)} names no --input-tensor")
    return {naming.tensor: _spec(tensors, naming, options) for naming in options.input_tensors}


def _spec(tensors: GraphTensors, naming: TensorNaming, options: ModelOptions) -> "tf.TensorSpec":
    """Return the graph's spec with a free first dimension, because training fixed it, or the spec of --input."""
    import tensorflow as tf

    tensors.check("--input-tensor", naming.tensor)
    found = tensors.find(naming.tensor)
    chosen = next((option_spec(one) for one in options.inputs if one.name == naming.name and one.dtype), None)
    if found is None or found.shape.rank is None:
        if chosen is None:
            raise OptionConflict(
                f"the shape of {naming.tensor} is unknown. Set it with --input '{naming.name}:DTYPE[...]'"
            )
        return tf.TensorSpec(chosen.shape, chosen.dtype, name=naming.name)
    free = tf.TensorShape([None, *found.shape.as_list()[1:]] if found.shape.rank else [])
    if chosen is not None and (chosen.dtype != found.dtype or not free.is_compatible_with(chosen.shape)):
        known = tf.TensorSpec(free, found.dtype, name=naming.tensor)
        raise OptionConflict(f"--input describes {describe_spec(chosen)}, but the graph has {describe_spec(known)}")
    return tf.TensorSpec(chosen.shape if chosen else free, found.dtype, name=naming.name)


def _check_fed(plain: "GraphDef", tensors: GraphTensors, options: ModelOptions, fetched: Sequence[str]) -> None:
    """Check that the outputs need no other inputs and no random numbers. Raises OptionConflict and TrainingMode."""
    ours = {_PLACEHOLDER + naming.name for naming in options.input_tensors}
    unfed = [one for one in find_entries(plain, fetched) if node_of(one) not in ours]
    needed = [one for one in unfed if not tensors.has_default(one)]
    if needed:
        raise OptionConflict(
            f"the outputs depend on more inputs. Name each with --input-tensor: {tensors.describe(needed)}"
        )
    random = [f"{node.op} (node {node.name})" for node in find_random(plain, fetched)]
    if random and not options.allow_nondeterminism:
        raise TrainingMode(
            f"the outputs depend on random numbers: {', '.join(sorted(random))}. Serve a tensor before them, or name "
            "their result as --input-tensor. Use --allow-nondeterminism to serve answers that differ each time"
        )
