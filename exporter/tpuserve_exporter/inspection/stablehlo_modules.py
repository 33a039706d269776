"""Describes the StableHLO modules in a graph, which JAX and PyTorch models become: platforms and versions."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

_OPERATION = "XlaCallModule"


def describe_modules(graph: "GraphDef") -> str | None:
    """Return a text such as `3 for CPU, TPU (version 9)`, or None if the graph has no modules."""
    functions = (function.node_def for function in graph.library.function)
    nodes = [node for nodes in (graph.node, *functions) for node in nodes if node.op == _OPERATION]
    if not nodes:
        return None
    platforms = _join({one.decode() for node in nodes for one in node.attr["platforms"].list.s})
    versions = _join({str(node.attr["version"].i) for node in nodes})
    return f"{len(nodes)} for {platforms or 'any platform'} (version {versions})"


def _join(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
