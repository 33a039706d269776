"""Reads checkpoints of TensorFlow 2 (an object graph) and 1 (only names), and `.meta` graphs."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import SourceUnreadable
from tpuserve_exporter.inspection.contents import Contents, StoredArray
from tpuserve_exporter.inspection.operations import count_operations
from tpuserve_exporter.models.tree_path import name_of_variable
from tpuserve_exporter.sources.checkpoint_path import find_prefix, find_variables
from tpuserve_exporter.sources.tf1.name_based import roles_of_names
from tpuserve_exporter.sources.variables.averages import find_averages
from tpuserve_exporter.sources.variables.object_graph import (
    OBJECT_GRAPH_KEY,
    ROOT,
    ObjectGraph,
    open_checkpoint,
    read_object_graph,
)
from tpuserve_exporter.terms.signature import read_signatures
from tpuserve_exporter.terms.texts import first
from tpuserve_formats.counted import counted

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef


def inspect_checkpoint(path: Path) -> Contents:
    """Return the contents of a checkpoint, or of the latest one in a directory. Raises SourceUnreadable."""
    prefix = find_prefix(path)
    objects = open_checkpoint(prefix).has_tensor(OBJECT_GRAPH_KEY)
    arrays, problems = list_arrays(prefix)
    others = sorted(one.stem for one in prefix.parent.glob("*.index") if one.stem != prefix.name)
    meta = prefix.with_name(f"{prefix.name}.meta")
    facts = {"others": ", ".join(others)} if others else {}
    if meta.is_file():
        facts["graph"] = f"inspect {meta.name} to see its operations"
    return Contents(
        kind="TF2 checkpoint" if objects else "TF1 checkpoint",
        name=prefix.name,
        facts=facts,
        arrays=arrays,
        files=list_files(prefix),
        problems=problems,
    )


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
            yield kind, first(names, _MOST_NAMES)
    if fed := [name for node in nodes if node.op.startswith("OutfeedEnqueue") for name in node.input if name[0] != "^"]:
        yield "outfed", first(fed, _MOST_NAMES)


def _list_variables(graph: "GraphDef") -> Iterator[StoredArray]:
    for node in graph.node:
        if node.op in _VARIABLES:
            yield _describe(node)


def _describe(node: "NodeDef") -> StoredArray:
    import tensorflow as tf

    dims = node.attr["shape"].shape
    shape = None if dims.unknown_rank else tuple(dim.size for dim in dims.dim)
    return StoredArray(node.name, tf.dtypes.as_dtype(node.attr["dtype"].type).base_dtype.name, shape)


_SHARD = re.compile(r"\.data-(\d{5})-of-(\d{5})$")
_ATTRIBUTE = "/.ATTRIBUTES/VARIABLE_VALUE"
_BOOKKEEPING = ("global_step", "save_counter")
_COUNTERS = ("save_counter",)


def list_arrays(prefix: Path) -> tuple[tuple[StoredArray, ...], tuple[str, ...]]:
    """Return the arrays and a list of problems. Names are those of training if there is an object graph.

    The object graph is in the data files. If these are damaged, names come from the index. Raises SourceUnreadable if
    the index is damaged.
    """
    reader = open_checkpoint(prefix)
    damage = list[str]()
    if reader.has_tensor(OBJECT_GRAPH_KEY):
        try:
            arrays = tuple(_list_objects(read_object_graph(prefix)))
            return arrays, tuple(_find_damage(prefix, arrays))
        except SourceUnreadable as error:
            damage.append(str(error))
    arrays = tuple(_list_names(reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()))
    return arrays, (*_find_damage(prefix, arrays), *damage)


def list_served(version: Path) -> tuple[StoredArray, ...]:
    """Return the variables of a SavedModel, or none if it has no variable files. Raises SourceUnreadable.

    All count as the model's, because a server loads them all.
    """
    prefix = find_variables(version)
    return () if prefix is None else of_model(list_arrays(prefix)[0])


def of_model(arrays: tuple[StoredArray, ...]) -> tuple[StoredArray, ...]:
    return tuple(replace(one, part="model") for one in arrays if one.name not in _COUNTERS)


def _list_names(shapes: "Mapping[str, list[int]]", dtypes: "Mapping[str, tf.DType]") -> Iterator[StoredArray]:
    names = {key: key.removesuffix(_ATTRIBUTE) for key in sorted(shapes) if key != OBJECT_GRAPH_KEY}
    roles = roles_of_names({name: shapes[key] for key, name in names.items()})
    for key, name in names.items():
        part = "other" if name in _BOOKKEEPING else roles[name]
        yield StoredArray(name, dtypes[key].name, tuple(shapes[key]), part)


def _list_objects(graph: ObjectGraph) -> Iterator[StoredArray]:
    optimizer = graph.optimizer_variables()
    # An export takes these averages, although an optimizer keeps them.
    averages = {one.node for one in find_averages(graph).values()}
    parts = dict.fromkeys(averages, "average") | dict.fromkeys(optimizer.keys() - averages, "optimizer")
    for root, node in graph.models().items():
        parts = dict.fromkeys(graph.model_variables(node), root) | parts
    # A model may be saved by itself, as the root.
    others = "other" if graph.models() else "model"
    parts = dict.fromkeys(graph.model_variables(ROOT), others) | parts
    for node, variable in graph.variables.items():
        yield StoredArray(name_of_variable(variable.name), variable.dtype, variable.shape, parts.get(node, "other"))


def list_files(prefix: Path) -> dict[str, int]:
    """Return the index and data files with their sizes in bytes."""
    found = [*prefix.parent.glob(f"{_escape(prefix.name)}.data-*"), prefix.with_name(f"{prefix.name}.index")]
    return {path.name: path.stat().st_size for path in sorted(found) if path.is_file()}


def _find_damage(prefix: Path, arrays: tuple[StoredArray, ...]) -> Iterator[str]:
    """Yield problems of missing or truncated data files, without reading them."""
    shards = {
        (int(match[1]), int(match[2])): size
        for name, size in list_files(prefix).items()
        if (match := _SHARD.search(name))
    }
    if not shards:
        yield f"no data: {prefix.name}.data-* is missing"
        return
    total = max(count for _, count in shards)
    missing = [number for number in range(total) if (number, total) not in shards]
    yield from (f"{prefix.name}.data-{number:05d}-of-{total:05d} is missing" for number in missing)
    needed, there = sum(one.size_bytes or 0 for one in arrays), sum(shards.values())
    if not missing and there < needed:
        yield f"the data of {prefix.name} is truncated: it has {there:,} bytes and needs at least {needed:,}"


def _escape(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)
