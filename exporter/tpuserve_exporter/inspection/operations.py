"""Counts the operations of a graph: all, those that need a TPU, those that only a host can run, and unknown ones."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from tpuserve_exporter.graphs.graph_walk import Walk, find_called, has_kernel
from tpuserve_exporter.graphs.operation_libraries import load_installed
from tpuserve_exporter.inspection.contents import Operations

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

_TPU_PREFIXES = ("TPU", "_TPU", "Infeed", "Outfeed", "XlaRecvAtHost", "XlaSendFromHost", "_XlaRecvAtHost", "_XlaSend")
_TPU_OPERATIONS = frozenset(
    {"CrossReplicaSum", "AllToAll", "CollectivePermute", "ConfigureDistributedTPU", "ShutdownDistributedTPU"}
    | {"ConfigureTPUEmbedding", "RecvTPUEmbeddingActivations", "SendTPUEmbeddingGradients", "EnqueueTPUEmbedding"}
)
# A compiler takes the first two as arguments, and turns loops and branches of TensorFlow 1 into functions.
_COMPILED_OTHERWISE = frozenset(
    {"Placeholder", "VarHandleOp"} | {"Enter", "Exit", "LoopCond", "Merge", "NextIteration", "Switch"}
)
_COMPILED = "XLA_CPU_JIT"


def count_operations(graph: "GraphDef", outputs: Iterable[str] | None = None) -> Operations:
    """Count the operations of the graph and its functions, or only those that the nodes `outputs` need.

    With `outputs`, operations for saving and restoring do not count.
    """
    counts = Counter(node.op for node in _all(graph, outputs))
    functions = {function.signature.name for function in graph.library.function}
    for name in functions & counts.keys():
        del counts[name]
    load_installed(counts)
    tpu = {name: count for name, count in counts.items() if is_tpu_operation(name)}
    unknown = {name: count for name, count in counts.items() if not _is_known(name) and name not in tpu}
    _register_compiled_kernels()
    host = {
        name: count
        for name, count in counts.items()
        if name not in _COMPILED_OTHERWISE
        and name not in tpu
        and name not in unknown
        and not has_kernel(name, _COMPILED)
    }
    return Operations(dict(counts.most_common()), tpu, host, unknown)


def is_tpu_operation(name: str) -> bool:
    return name.startswith(_TPU_PREFIXES) or name in _TPU_OPERATIONS


def _all(graph: "GraphDef", outputs: Iterable[str] | None) -> "Iterator[NodeDef]":
    parts = [function.node_def for function in graph.library.function]
    return chain(graph.node, *parts) if outputs is None else chain(*find_needed(graph, outputs))


def find_needed(graph: "GraphDef", outputs: Iterable[str]) -> "list[list[NodeDef]]":
    """Return the nodes that the outputs need: those of the graph first, then those of each called function."""
    needed = list(Walk(graph).needed(outputs).values())
    return [needed, *(list(function.node_def) for function in find_called(graph, needed).values())]


def _is_known(name: str) -> bool:
    from tensorflow.python.framework import op_def_registry

    return op_def_registry.get(name) is not None


def _register_compiled_kernels() -> None:
    """Run a compilation, because the compiler registers its kernels at the first one."""
    import tensorflow as tf

    tf.function(lambda value: value + 1.0, jit_compile=True)(tf.constant(1.0))
