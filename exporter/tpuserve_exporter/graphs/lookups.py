"""Lookups in a graph: the tables whose rows the inputs choose, and the inputs that choose them.

The walk goes back from the row numbers through integers and strings. A float on the way ends it, unless the operation
only moves or converts values: results of the model do not limit its inputs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tpuserve_exporter.graphs.dependence import without_weights
from tpuserve_exporter.graphs.function_inlining import REPEATED, inline_to_analyse
from tpuserve_exporter.graphs.graph_walk import Walk, node_of
from tpuserve_exporter.graphs.program_lookups import Columns, Probe, read_lookups

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.framework.graph_pb2 import GraphDef

_GATHERS = frozenset({"Gather", "GatherV2", "ResourceGather"})
_GATHERS_ND = frozenset({"GatherNd", "ResourceGatherNd"})
# Operations that take elements of their first input, at positions.
_TAKING = _GATHERS | _GATHERS_ND | {"StridedSlice", "TensorListGetItem"}
_BINS = frozenset({"Bincount", "DenseBincount"})
PARSERS = frozenset({"ParseExample", "ParseExampleV2"})
PROGRAM = "XlaCallModule"
_SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike", "Bucketize", "ArgMax", "ArgMin"})
# Operations that keep the values of floats.
_KEEPING = frozenset({"Identity", "IdentityN", "Cast", "Reshape", "ExpandDims", "Squeeze", "StridedSlice", "Floor"})
# Arrays of TensorFlow 1 pass their values as a float, in loops of these operations.
_KEEPING |= {f"TensorArray{name}V3" for name in ("Scatter", "Read", "Write", "Gather")}
_KEEPING |= {"Enter", "Exit", "Switch", "Merge", "NextIteration"}
# Operations on lists of rows, which keep the columns of the rows.
_LISTING = frozenset({"TensorListFromTensor", "TensorListGetItem", "Identity", "Merge"})
_MIXING = frozenset({"Transpose", "ReverseV2", "Roll", "Reshape", "GatherV2"})
_SPLITTERS = frozenset({"StringSplit", "StringSplitV2", "UnicodeDecode", "UnicodeDecodeWithOffsets", "StringNGrams"})
# TensorFlow Text's, of which WordpieceTokenizeWithOffsets looks up its words itself.
_SPLITTERS |= {"RegexSplitWithOffsets", "WhitespaceTokenizeWithOffsetsV2", "UnicodeScriptTokenizeWithOffsets"}
_TABLES = ("HashTableV2", "MutableHashTableV2", "MutableDenseHashTableV2", "AnonymousHashTable")


@dataclass(frozen=True, slots=True)
class Lookup:
    """A lookup in `rows` rows of a table. `sources` are tensors of the flat graph, each with its columns.

    A source is a placeholder, or an output of a parser of tf.Examples (`node:1`). There is none if a vocabulary gives
    the row numbers. `table` is empty for one-hot numbers, for lookups in activations, and for row numbers from a loop,
    of which the flat graph has only the first. Without `rows`, it is a vocabulary, and `splits` means that it takes
    words of a text. `index` is the tensor of row numbers, or, with a `result`, the program's node that returns them.
    """

    table: str
    rows: int
    sources: Mapping[str, Columns]
    index: str
    result: int | None = None
    splits: bool = False


@dataclass(frozen=True, slots=True)
class Lookups:
    """All lookups of a graph. `flat` is the graph without calls, and `probes` has programs that return row numbers."""

    found: tuple[Lookup, ...]
    flat: "GraphDef"
    probes: Mapping[str, Probe]


def find_lookups(graph_def: "GraphDef", outputs: Sequence[str], inputs: Sequence[str]) -> Lookups:
    """Return the lookups that the tensors `outputs` need and the placeholders `inputs` choose.

    Nothing is found in a graph that TensorFlow cannot import without its functions.
    """
    import tensorflow as tf

    names = list(dict.fromkeys(map(node_of, outputs)))
    part = tf.compat.v1.graph_util.extract_sub_graph(without_weights(graph_def), names)
    flat, _ = inline_to_analyse(part, outputs)
    programs = {node.name: node.attr["module"].s for node in flat.node if node.op == PROGRAM}
    light = type(flat)()
    light.CopyFrom(flat)
    for node in light.node:
        if node.op == PROGRAM:
            node.attr["module"].s = b""  # shape inference would copy its weights
    graph = tf.Graph()
    try:
        with graph.as_default():
            tf.graph_util.import_graph_def(light, name="")
    except ValueError:
        return Lookups((), flat, {})
    walk = _Walk(graph, Walk(light), {node_of(one) for one in inputs})
    found, probes = list[Lookup](), dict[str, Probe]()
    for operation in graph.get_operations():
        found += walk.lookups(operation)
        if operation.type == PROGRAM:
            inner, probe = walk.program_lookups(operation, programs[operation.name])
            found += inner
            probes |= {} if probe is None else {operation.name: probe}
    return Lookups(tuple(found), flat, probes)


class _Walk:
    def __init__(self, graph: "tf.Graph", nodes: Walk, inputs: set[str]) -> None:
        self._graph = graph
        self._nodes = nodes
        self._inputs = inputs
        self._fed = nodes.after(inputs)

    def lookups(self, operation: "tf.Operation") -> Iterator[Lookup]:
        for rows, index, table in self._indices_of(operation):
            if index.op.name not in self._fed:
                continue
            sources, splits = self._sources(index)
            if rows != 1:
                yield Lookup(table, rows, sources, _name(index), splits=splits)

    def _indices_of(self, operation: "tf.Operation") -> "Iterator[tuple[int, tf.Tensor, str]]":
        """Yield the number of rows, the row numbers and the table's name of each lookup that an operation is."""
        import tensorflow as tf

        kind, inputs = operation.type, operation.inputs
        if kind in _GATHERS or kind in _GATHERS_ND:
            shape = self._table_shape(inputs[0])
            axis = 0
            if kind == "GatherV2":
                known = tf.get_static_value(inputs[2])
                axis = 0 if known is None else int(known)
            if kind in _GATHERS_ND and shape is not None:
                shape = [min(shape[: inputs[1].shape[-1] or 1], key=lambda one: one or 0)]
            rows = shape[axis] if shape and -len(shape) <= axis < len(shape) else None
            if rows:
                yield rows, inputs[1], self._table_name(inputs[0], _name(inputs[1]))
        elif kind == "OneHot" or kind in _BINS:
            extent = tf.get_static_value(inputs[1])
            if extent is not None and np.ndim(extent) == 0:
                yield int(extent), inputs[0], ""
        elif vocabulary := self._vocabulary_of(operation):
            yield from ((0, one, vocabulary) for one in inputs if _is_key(one))

    def _vocabulary_of(self, operation: "tf.Operation") -> str:
        """Return the name of the lookup table that an operation reads, or nothing."""
        handles = (self._nodes.root(_name(one)) for one in operation.inputs if one.dtype.name == "resource")
        return next((name for name in handles if self._nodes.nodes[name].op in _TABLES), "")

    def _table_shape(self, table: "tf.Tensor") -> list[int | None] | None:
        if table.dtype.name != "resource":
            return None if table.shape.rank is None else table.shape.as_list()
        root = self._graph.get_operation_by_name(self._nodes.root(_name(table)))
        return [dim.size for dim in root.get_attr("shape").dim] if root.type == "VarHandleOp" else None

    def _table_name(self, table: "tf.Tensor", index: str) -> str:
        """Return the name of a variable or constant, or nothing if inputs change it or a loop computes the index."""
        is_repeated = any(REPEATED in one.attr or one.op == "Enter" for one in self._nodes.before([index]).values())
        if table.op.name in self._fed or is_repeated:
            return ""
        roots = self._nodes.before([_name(table)])
        variables = [name for name, node in roots.items() if node.op in ("VarHandleOp", "VariableV2")]
        return variables[0] if variables else table.op.name

    def program_lookups(self, operation: "tf.Operation", program: bytes) -> tuple[list[Lookup], Probe | None]:
        fed = {number for number, one in enumerate(operation.inputs) if one.op.name in self._fed}
        inner, probe = read_lookups(program, len(operation.inputs), fed) if fed else ([], None)
        found = []
        for one in inner:
            sources: dict[str, Columns] = {}
            for number, columns in one.arguments:
                sources |= self._sources(operation.inputs[number], columns)[0]
            table = "" if one.table is None else self._table_name(operation.inputs[one.table], operation.name)
            found.append(Lookup(table, one.rows, sources, operation.name, one.result))
        return found, probe

    def _sources(self, index: "tf.Tensor", columns: Columns = None) -> tuple[dict[str, Columns], bool]:
        """Return the sources of a tensor of row numbers or words, and whether text is split on the way."""
        found: dict[str, Columns] = {}
        splits = False
        waiting, seen = [(index, columns)], set[tuple[str, Columns]]()
        while waiting:
            tensor, columns = waiting.pop()
            operation = tensor.op
            if (tensor.name, columns) in seen or operation.name not in self._fed or operation.type in _SHAPES:
                continue
            if self._vocabulary_of(operation):
                continue
            seen.add((tensor.name, columns))
            if operation.name in self._inputs or operation.type in PARSERS:
                found[_name(tensor)] = columns if _name(tensor) not in found else None
                continue
            splits = splits or operation.type in _SPLITTERS
            waiting += _operands(tensor, columns)
        return found, splits


def _operands(tensor: "tf.Tensor", columns: Columns) -> "Iterator[tuple[tf.Tensor, Columns]]":
    """Yield the inputs whose values the tensor has or is computed from, with their columns.

    A variant is a list of tensors, which tf.map_fn and tf.scan make of their inputs.
    """
    operation = tensor.op
    inputs = list(operation.inputs)
    if operation.type in _TAKING:
        inputs = inputs[:1]  # the others are positions
    for one in inputs:
        kind = one.dtype.base_dtype
        if kind.name == "variant":
            yield one, columns if operation.type in _LISTING else None
        elif _is_key(one):
            yield one, _columns_before(tensor, one, columns)
        elif kind.is_floating and operation.type in _KEEPING:
            yield one, None


def _is_key(tensor: "tf.Tensor") -> bool:
    kind = tensor.dtype.base_dtype
    return bool(kind.is_integer or kind.name == "string")


def _columns_before(tensor: "tf.Tensor", taken: "tf.Tensor", columns: Columns) -> Columns:
    chosen = _chosen(tensor)
    if chosen is not None:
        return chosen if columns is None else tuple(chosen[one] for one in columns if one < len(chosen))
    if tensor.op.type in _LISTING and tensor.dtype.base_dtype.name == "variant":
        return columns
    shapes = taken.shape, tensor.shape
    if None in (shapes[0].rank, shapes[1].rank) or not shapes[0].rank or tensor.op.type in _MIXING:
        return None
    same = shapes[0].rank == shapes[1].rank and shapes[0][-1] is not None and shapes[0][-1] == shapes[1][-1]
    return columns if same else None


def _chosen(tensor: "tf.Tensor") -> Columns:
    """Return the columns of the last dimension that a slice, split or constant gather takes of its first input."""
    import tensorflow as tf

    operation = tensor.op
    kind, inputs = operation.type, operation.inputs
    if kind == "StridedSlice" and inputs[0].shape.rank and inputs[0].shape[-1]:
        ends = [tf.get_static_value(one) for one in inputs[1:4]]
        return None if any(one is None for one in ends) else _slice_columns(operation, ends)
    if kind == "Unpack" and inputs[0].shape.rank:
        last = operation.get_attr("axis") in (-1, inputs[0].shape.rank - 1)
        return (tensor.value_index,) if last else None
    if kind == "Split" and inputs[1].shape.rank and inputs[1].shape[-1]:
        axis, count = tf.get_static_value(inputs[0]), operation.get_attr("num_split")
        if axis is None or int(axis) not in (-1, inputs[1].shape.rank - 1):
            return None
        width = inputs[1].shape[-1] // count
        return tuple(range(tensor.value_index * width, (tensor.value_index + 1) * width))
    if kind == "GatherV2" and inputs[0].shape.rank:
        axis, index = tf.get_static_value(inputs[2]), tf.get_static_value(inputs[1])
        if index is not None and axis is not None and int(axis) in (-1, inputs[0].shape.rank - 1):
            return tuple(int(one) for one in np.ravel(index))
    return None


def _slice_columns(operation: "tf.Operation", ends: Sequence[Any]) -> Columns:
    """Return the columns of a StridedSlice with known ends, or None if it takes all."""
    source = operation.inputs[0].shape
    shape = [min(dim or 3, 3) for dim in source[:-1]] + [source[-1]]
    spec: list[Any] = []
    masks = {
        name: operation.get_attr(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    for axis, (begin, end, step) in enumerate(zip(*ends, strict=True)):
        is_set = {name: bool(mask >> axis & 1) for name, mask in masks.items()}
        if is_set["ellipsis"]:
            spec.append(...)
        elif is_set["new_axis"]:
            spec.append(None)
        elif is_set["shrink_axis"]:
            spec.append(int(begin))
        else:
            spec.append(slice(None if is_set["begin"] else begin, None if is_set["end"] else end, step))
    numbers = np.broadcast_to(np.arange(shape[-1]), shape)
    try:
        taken = np.unique(numbers[tuple(spec)])
    except IndexError:
        return None
    return None if len(taken) == shape[-1] else tuple(map(int, taken))


def _name(tensor: "tf.Tensor") -> str:
    return str(tensor.name).removesuffix(":0")
