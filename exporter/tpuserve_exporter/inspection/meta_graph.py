"""Reads a `.meta` file: the graph that a TensorFlow 1 program trained, with its TPU operations."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import SourceUnreadable
from tpuserve_exporter.inspection.contents import Contents, StoredArray
from tpuserve_exporter.inspection.operations import count_operations
from tpuserve_exporter.inspection.variables_files import list_arrays, list_files
from tpuserve_exporter.terms.signature import read_signatures
from tpuserve_formats.counted import counted

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef

_VARIABLES = ("VarHandleOp", "VariableV2", "Variable")
_INPUTS = ("Placeholder", "PlaceholderWithDefault", "TPUReplicatedInput", "InfeedDequeue", "InfeedDequeueTuple")
_MOST_NAMES = 12


def inspect_meta(path: Path) -> Contents:
    """Return the contents of a `.meta` file. Raises SourceUnreadable."""
    meta_graph = _parse(path)
    graph = meta_graph.graph_def
    prefix = path.with_suffix("")
    stored = path.with_suffix(".index").is_file()
    missing = f"no checkpoint next to it: {path.stem}.index is missing"
    arrays, problems = list_arrays(prefix) if stored else (tuple(_list_variables(graph)), (missing,))
    return Contents(
        kind="TF1 graph (.meta)",
        name=path.name,
        facts=dict(_facts(meta_graph)),
        signatures=read_signatures(meta_graph.signature_def),
        arrays=arrays,
        operations=count_operations(graph),
        files={path.name: path.stat().st_size} | list_files(prefix),
        problems=problems,
    )


def _parse(path: Path) -> "MetaGraphDef":
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef

    try:
        meta_graph = MetaGraphDef.FromString(path.read_bytes())
    except DecodeError as error:
        raise SourceUnreadable(f"{path.name} is damaged or not a MetaGraphDef") from error
    if not meta_graph.graph_def.node:
        raise SourceUnreadable(f"{path.name} contains no graph: it is empty or truncated")
    return meta_graph


def _facts(meta_graph: "MetaGraphDef") -> Iterator[tuple[str, str]]:
    nodes = meta_graph.graph_def.node
    if meta_graph.meta_info_def.tensorflow_version:
        yield "written by", f"TensorFlow {meta_graph.meta_info_def.tensorflow_version}"
    yield "nodes", f"{len(nodes):,}, and {counted(len(meta_graph.graph_def.library.function), 'function')}"
    for kind in _INPUTS:
        if names := [node.name for node in nodes if node.op == kind]:
            yield kind, _shorten(names)
    if fed := [name for node in nodes if node.op.startswith("OutfeedEnqueue") for name in node.input if name[0] != "^"]:
        yield "outfed", _shorten(fed)


def _shorten(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _list_variables(graph: "GraphDef") -> Iterator[StoredArray]:
    for node in graph.node:
        if node.op in _VARIABLES:
            yield _describe(node)


def _describe(node: "NodeDef") -> StoredArray:
    import tensorflow as tf

    dims = node.attr["shape"].shape
    shape = None if dims.unknown_rank else tuple(dim.size for dim in dims.dim)
    return StoredArray(node.name, tf.dtypes.as_dtype(node.attr["dtype"].type).base_dtype.name, shape)
