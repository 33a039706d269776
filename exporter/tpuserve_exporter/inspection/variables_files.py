"""Reads a TensorFlow checkpoint's files: the arrays by name, and whether the data files of the index are complete."""

import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import SourceUnreadable
from tpuserve_exporter.inspection.contents import StoredArray
from tpuserve_exporter.models.tree_path import name_of_variable
from tpuserve_exporter.sources.checkpoint_path import find_variables
from tpuserve_exporter.sources.tf1.name_based import OPTIMIZER_SCALARS
from tpuserve_exporter.sources.variables.object_graph import (
    OBJECT_GRAPH_KEY,
    ROOT,
    ObjectGraph,
    open_checkpoint,
    read_object_graph,
)

if TYPE_CHECKING:
    import tensorflow as tf

_SHARD = re.compile(r"\.data-(\d{5})-of-(\d{5})$")
_ATTRIBUTE = "/.ATTRIBUTES/VARIABLE_VALUE"
_AVERAGE = "/ExponentialMovingAverage"
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
    for key, name in names.items():
        yield StoredArray(name, dtypes[key].name, tuple(shapes[key]), _part(name, shapes))


def _list_objects(graph: ObjectGraph) -> Iterator[StoredArray]:
    optimizer = graph.optimizer_variables()
    parts = dict.fromkeys(optimizer, "optimizer")
    for root, node in graph.models().items():
        parts = dict.fromkeys(graph.model_variables(node), root) | parts
    # A model may be saved by itself, as the root.
    others = "other" if graph.models() else "model"
    parts = dict.fromkeys(graph.model_variables(ROOT), others) | parts
    for node, variable in graph.variables.items():
        yield StoredArray(name_of_variable(variable.name), variable.dtype, variable.shape, parts.get(node, "other"))


def _part(name: str, names: Container[str]) -> str:
    """Return the part for a checkpoint by names: slots are below a variable's name, and averages have their suffix."""
    if name.endswith(_AVERAGE):
        return "average"
    if name in _BOOKKEEPING:
        return "other"
    above = name.rpartition("/")[0]
    return "optimizer" if (above and above in names) or OPTIMIZER_SCALARS.fullmatch(name) else "model"


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
