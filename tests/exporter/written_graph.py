"""The content of an exported SavedModel's file."""

from collections.abc import Iterator
from pathlib import Path

from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel


def read_meta_graph(version: Path) -> MetaGraphDef:
    return SavedModel.FromString((version / "saved_model.pb").read_bytes()).meta_graphs[0]


def nodes(meta_graph: MetaGraphDef) -> Iterator[NodeDef]:
    """Yield the nodes of the graph and of all its functions."""
    yield from meta_graph.graph_def.node
    for function in meta_graph.graph_def.library.function:
        yield from function.node_def
