"""Dtypes and shapes of a graph's tensors, and the tensors that are likely inputs and outputs."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from tpuserve_exporter.dataflow.graph_walk import node_of
from tpuserve_exporter.errors import OptionConflict, SourceUnreadable, reason_of
from tpuserve_exporter.sources.tf1.tpu_surgery import reached

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.framework.graph_pb2 import GraphDef

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
