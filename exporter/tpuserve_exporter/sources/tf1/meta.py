"""Opens the `.meta` graph that TF1 training writes with its checkpoint. Removes training and TPU operations."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import CheckpointMismatch, OptionConflict, SourceUnreadable, TrainingMode, reason_of
from tpuserve_exporter.graphs.function_inlining import inline_calls
from tpuserve_exporter.graphs.graph_walk import node_of
from tpuserve_exporter.graphs.tpu_surgery import (
    leave_training_loop,
    reached,
    remove_tpu_operations,
    replace_inputs,
)
from tpuserve_exporter.models.naming import check_distinct, check_names, describe_spec, option_spec
from tpuserve_exporter.options.export_options import ModelOptions, TensorNaming
from tpuserve_exporter.sources.checkpoint_path import find_prefix
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.sources.saved_model.file import check_graph
from tpuserve_exporter.sources.tf1.batch_freedom import check_free, check_runs, free_reshapes, free_row_counts
from tpuserve_exporter.sources.tf1.graph import SessionReference, V1Graph, cut_graph, variable_names
from tpuserve_exporter.sources.tf1.name_based import read_checkpoint, restore
from tpuserve_exporter.sources.tf1.training_mode import find_random, stop_training
from tpuserve_exporter.sources.tf1.training_switch import set_to_inference
from tpuserve_exporter.terms.signature import Array

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.variable_pb2 import VariableDef
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef


# Operations by which data enters a training graph.
_ENTRIES = frozenset(
    {"Placeholder", "PlaceholderWithDefault", "InfeedDequeue", "InfeedDequeueTuple", "IteratorGetNext", "FIFOQueueV2"}
    | {"QueueDequeueV2", "QueueDequeueManyV2"}
)
# Operations at which a model is likely to end.
_ENDS = frozenset({"Softmax", "LogSoftmax", "Sigmoid", "Tanh", "ArgMax", "TopKV2"})
_LOSSES = frozenset({"SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits"})
_OUTFEEDS = frozenset({"OutfeedEnqueue", "OutfeedEnqueueTuple", "TPUReplicatedOutput"})
_NOT_THE_MODEL = ("gradients", "save/", "Adam", "Momentum", "cluster/")
_MOST_LISTED = 8


class GraphTensors:
    """The tensors of `graph_def`, except those that depend on unknown operations."""

    def __init__(self, graph_def: "GraphDef") -> None:
        import tensorflow as tf

        self._graph_def = graph_def
        self._names = {node.name for node in graph_def.node}
        self._graph = tf.Graph()
        try:
            with self._graph.as_default():
                tf.graph_util.import_graph_def(_known_part(graph_def), name="")
        except ValueError as error:
            raise SourceUnreadable(f"the graph is damaged: {reason_of(error)}") from error

    def check(self, option: str, tensor: str) -> None:
        """Raise OptionConflict, with similar names, if the graph has no such tensor."""
        if node_of(tensor) in self._names:
            return
        near = get_close_matches(node_of(tensor), self._names, 3)
        hint = f". Similar names: {', '.join(near)}" if near else ""
        raise OptionConflict(f"{option}: the graph has no tensor {tensor}{hint}")

    def find(self, tensor: str) -> "tf.Tensor | None":
        """Return the tensor for its dtype and shape, or None if it is missing or depends on unknown operations."""
        try:
            found: tf.Tensor = self._graph.get_tensor_by_name(tensor if ":" in tensor else f"{tensor}:0")
        except (KeyError, ValueError):
            return None
        return found

    def rows(self, tensor: str) -> int | None:
        """Return the tensor's first dimension if the graph was built for one batch size, else None."""
        found = self.find(tensor)
        rows: int | None = found.shape[0] if found is not None and found.shape.rank else None
        return rows

    def has_default(self, tensor: str) -> bool:
        """Return whether the tensor is a placeholder with a default, which needs no input."""
        found = self.find(tensor)
        return found is not None and found.op.type == "PlaceholderWithDefault"

    def describe(self, tensors: Sequence[str]) -> str:
        """Return the first few tensors as text: `logits/add (float32[16, 3]), …`."""
        return ", ".join(self._describe(tensor) for tensor in tensors[:_MOST_LISTED])

    def _describe(self, tensor: str) -> str:
        found = self.find(tensor)
        if found is None:
            return tensor
        dims = "..." if found.shape.rank is None else ", ".join(str(dim or "?") for dim in found.shape.as_list())
        return f"{tensor} ({found.dtype.base_dtype.name}[{dims}])"

    def likely_inputs(self, outputs: Sequence[str]) -> list[str]:
        """Return the tensors by which data enters that `outputs` depend on."""
        return find_entries(self._graph_def, [node_of(tensor) for tensor in outputs])

    def likely_outputs(self) -> list[str]:
        """Return likely ends of the model: final activations, inputs of losses, and tensors that go to the host."""
        return list(dict.fromkeys(tensor for tensor in self._ends() if self._is_data(tensor)))

    def _ends(self) -> Iterator[str]:
        model = [node for node in self._graph_def.node if not node.name.startswith(_NOT_THE_MODEL)]
        yield from (node.name for node in reversed(model) if node.op in _ENDS)
        yield from (node.input[0] for node in reversed(model) if node.op in _LOSSES)
        yield from (tensor for node in model if node.op in _OUTFEEDS for tensor in node.input if tensor[0] != "^")

    def _is_data(self, tensor: str) -> bool:
        found = self.find(tensor)
        return found is not None and found.shape.rank != 0


def find_entries(graph_def: "GraphDef", fetched: Sequence[str]) -> list[str]:
    """Return the entry tensors that the nodes `fetched` depend on."""
    entries = {node.name for node in graph_def.node if node.op in _ENTRIES}
    tensors = (tensor for node in reached(graph_def, fetched) for tensor in node.input)
    return sorted({tensor for tensor in tensors if node_of(tensor) in entries})


def _known_part(graph_def: "GraphDef") -> "GraphDef":
    """Return the graph without nodes of unregistered operations and without nodes that depend on them."""
    from tensorflow.python.framework import op_def_registry

    functions = {function.signature.name for function in graph_def.library.function}
    unknown = {n.name for n in graph_def.node if n.op not in functions and op_def_registry.get(n.op) is None}
    if not unknown:
        return graph_def
    grown = -1
    while grown != len(unknown):
        grown = len(unknown)
        unknown |= {node.name for node in graph_def.node if any(node_of(one) in unknown for one in node.input)}
    known = type(graph_def)()
    known.CopyFrom(graph_def)
    del known.node[:]
    known.node.extend(node for node in graph_def.node if node.name not in unknown)
    return known


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
