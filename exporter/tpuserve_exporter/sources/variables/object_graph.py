"""The variables of a TF2 object checkpoint, read from its stored object graph.

The keys of a checkpoint follow the shortest path to each variable. With a saved optimizer, a kernel may have the key
`optimizer/_trainable_variables/0`. So this module ignores the meaning of keys. The objects that hold a variable show
its role (TrackableObjectGraph in tensorflow/core/protobuf/trackable_object_graph.proto).
"""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import CheckpointMismatch, SourceUnreadable, reason_of
from tpuserve_exporter.options.export_options import Rename, rename
from tpuserve_exporter.terms.restore_report import ArraySpec
from tpuserve_exporter.terms.signature import Array

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

OBJECT_GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
# Children of a model that hold no part of it: optimizers, losses, metrics and random generators.
_OPTIMIZER_EDGES = frozenset({"optimizer", "_optimizer"})
_BOOKKEEPING_EDGES = frozenset(
    {"loss", "_loss_tracker", "_metrics", "compiled_metrics", "_compile_metrics", "compiled_loss", "_compile_loss"}
    | {"keras_api", "seed_generator", "_random_generator", "_seed_generators", "save_counter", "step", "global_step"}
)
ROOT = 0
# Keras' lookup layers: the edge to the vocabulary's table, and edges to what they count and compute in `adapt`.
_LOOKUP_TABLE = "lookup_table"
_LOOKUP_STATE = frozenset({"idf_weights", "num_documents", "token_counts", "token_document_counts"})


@dataclass(frozen=True, slots=True)
class StoredVariable:
    """One variable in the checkpoint. `name` is its name in training, such as `conv1/kernel`."""

    node: int
    name: str
    key: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def spec(self) -> ArraySpec:
        return ArraySpec(self.dtype, self.shape)


@dataclass(frozen=True, slots=True)
class StoredTable:
    """The entries of a lookup table in the checkpoint. `keys` and `values` have equal lengths."""

    node: int
    keys: StoredVariable
    values: StoredVariable

    @property
    def count(self) -> int:
        return self.keys.shape[0]


def renamed(variables: Mapping[int, StoredVariable], renames: Sequence[Rename]) -> dict[int, StoredVariable]:
    """Return the variables with new names. Raises CheckpointMismatch if --rename gives several variables one name."""
    named = {node: rename(variable.name, renames) for node, variable in variables.items()}
    before, after = Counter(one.name for one in variables.values()), Counter(named.values())
    clashing = sorted({name for node, name in named.items() if after[name] > before[variables[node].name]})
    if clashing:
        raise CheckpointMismatch(f"--rename gives several variables the same name: {', '.join(clashing)}")
    return {node: replace(one, name=named[node]) for node, one in variables.items()}


@dataclass(frozen=True, slots=True)
class ObjectGraph:
    """Objects by number (0 is the root), their children by name, and the variables among them.

    `slots` are variables that an optimizer keeps for other variables. Each has the other's number and the slot's name.
    `tables` are mutable lookup tables. A checkpoint does not hold the entries of others.
    """

    prefix: Path
    reader: "tf.train.CheckpointReader"
    children: dict[int, dict[str, int]]
    variables: dict[int, StoredVariable]
    slots: dict[int, tuple[int, str]]
    tables: dict[int, StoredTable]

    def renamed(self, renames: Sequence[Rename]) -> "ObjectGraph":
        """Return the graph with new names. Raises CheckpointMismatch if --rename gives several variables one name."""
        return replace(self, variables=renamed(self.variables, renames))

    def reachable(self, start: int, without: frozenset[str]) -> Iterator[int]:
        """Yield the objects under `start`, nearest first. Do not follow edges named in `without`."""
        seen, queue = {start}, [start]
        for node in queue:
            yield node
            for name, child in self.children[node].items():
                if name not in without and child not in seen:
                    seen.add(child)
                    queue.append(child)

    def model_variables(self, start: int) -> dict[int, StoredVariable]:
        """Return the variables of the model at `start`, without its optimizer, metrics and generators."""
        nodes = self.reachable(start, _OPTIMIZER_EDGES | _BOOKKEEPING_EDGES)
        without = {*self.slots, *self.lookup_state()}
        return {node: self.variables[node] for node in nodes if node in self.variables and node not in without}

    def lookup_state(self) -> dict[int, str]:
        """Return the objects with counts and weights in Keras' lookup layers, with their names in the layer."""
        owners = (children for children in self.children.values() if _LOOKUP_TABLE in children)
        return {node: name for children in owners for name, node in children.items() if name in _LOOKUP_STATE}

    def model_tables(self, start: int) -> dict[int, StoredTable]:
        """Return the tables of the model at `start`, without the empty counts of Keras' lookup layers."""
        nodes = self.reachable(start, _OPTIMIZER_EDGES | _BOOKKEEPING_EDGES)
        counts = self.lookup_state()
        return {node: self.tables[node] for node in nodes if node in self.tables and node not in counts}

    def models(self) -> dict[str, int]:
        """Return the root's children by name, without optimizers, bookkeeping and bare variables."""
        without = _OPTIMIZER_EDGES | _BOOKKEEPING_EDGES
        children = self.children[ROOT].items()
        return {name: child for name, child in children if name not in without and child not in self.variables}

    def inner_models(self) -> dict[str, int]:
        """Return the children of the root's models by path (`agent/net`), without optimizers and bare variables."""
        without = _OPTIMIZER_EDGES | _BOOKKEEPING_EDGES
        return {
            f"{outer}/{name}": child
            for outer, node in self.models().items()
            for name, child in self.children[node].items()
            if name not in without and child not in self.variables
        }

    def optimizer_variables(self) -> dict[int, StoredVariable]:
        """Return the variables that only an optimizer holds, and its slots."""
        others = set(self.reachable(ROOT, _OPTIMIZER_EDGES))
        return {n: variable for n, variable in self.variables.items() if n in self.slots or n not in others}

    def read(self, variable: StoredVariable) -> Array:
        """Return the value. Raises SourceUnreadable as `read_tensor` does."""
        return read_tensor(self.reader, self.prefix, variable.key)

    def read_into(self, variable: StoredVariable, target: "tf.Variable") -> None:
        """Assign the value to a variable of its shape, in the variable's dtype.

        The read tensor becomes the variable's value, without a copy in TensorFlow or in Python. Raises SourceUnreadable
        as `read_tensor` does.
        """
        target.assign(restore_tensor(self.prefix, variable.key, variable.dtype, target.dtype), read_value=False)


def read_object_graph(prefix: Path) -> ObjectGraph:
    """Read the graph of the checkpoint `prefix` (without `.index`). Raises SourceUnreadable."""
    import tensorflow as tf
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    reader = open_checkpoint(prefix)
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    if OBJECT_GRAPH_KEY not in shapes:
        raise SourceUnreadable(f"{prefix.name} is a name-based TF1 checkpoint without an object graph")
    graph = TrackableObjectGraph.FromString(bytes(read_tensor(reader, prefix, OBJECT_GRAPH_KEY).item()))
    variables = {
        number: StoredVariable(
            number, attribute.full_name or attribute.checkpoint_key, attribute.checkpoint_key,
            tf.dtypes.as_dtype(dtypes[attribute.checkpoint_key]).name, tuple(shapes[attribute.checkpoint_key]),
        )
        for number, node in enumerate(graph.nodes)
        for attribute in node.attributes
        if attribute.name == "VARIABLE_VALUE" and attribute.checkpoint_key in shapes
    }  # fmt: skip
    tables = {
        number: StoredTable(number, *(
            StoredVariable(number, key, key, tf.dtypes.as_dtype(dtypes[key]).name, tuple(shapes[key]))
            for key in (f"{attribute.checkpoint_key}-keys", f"{attribute.checkpoint_key}-values")
        ))
        for number, node in enumerate(graph.nodes)
        for attribute in node.attributes
        if f"{attribute.checkpoint_key}-keys" in shapes
    }  # fmt: skip
    children = {n: {child.local_name: child.node_id for child in node.children} for n, node in enumerate(graph.nodes)}
    return ObjectGraph(prefix, reader, children, variables, _slots(graph) | _table_slots(children), tables)


def _table_slots(children: Mapping[int, Mapping[str, int]]) -> dict[int, tuple[int, str]]:
    """Return the slots of TPUEmbedding tables, which are next to the parameters: `_variables/TABLE/parameters`."""
    tables = [
        children[table]
        for owner in children.values()
        if "_variables" in owner
        for table in children[owner["_variables"]].values()
        if "parameters" in children[table]
    ]
    return {
        node: (table["parameters"], name) for table in tables for name, node in table.items() if name != "parameters"
    }


def _slots(graph: "TrackableObjectGraph") -> dict[int, tuple[int, str]]:
    """Return the slots that optimizers of Keras 2 and weight averages use for their state."""
    return {
        slot.slot_variable_node_id: (slot.original_variable_node_id, slot.slot_name)
        for node in graph.nodes
        for slot in node.slot_variables
    }


def open_checkpoint(prefix: Path) -> "tf.train.CheckpointReader":
    """Return a reader of the checkpoint `prefix`, of TF1 or TF2. Raises SourceUnreadable."""
    import tensorflow as tf

    with _reading(f"{prefix.name}.index", prefix):
        return tf.train.load_checkpoint(str(prefix))


def read_tensor(reader: "tf.train.CheckpointReader", prefix: Path, key: str) -> Array:
    """Return the value under `key`. Raises SourceUnreadable if a shard is missing or truncated."""
    import numpy as np

    with _reading(f"the data of {prefix.name}", prefix):
        value = reader.get_tensor(key)
    # numpy's string dtype would drop zero bytes at a string's end.
    return np.asarray(value, object) if isinstance(value, bytes) else np.asarray(value)


def restore_tensor(prefix: Path, key: str, stored: str, wanted: "tf.DType", part: str = "") -> "tf.Tensor":
    """Return the value under `key`, of dtype `stored`, as `wanted`, without a copy in Python. Raises as `read_tensor`.

    `part` is the slice to read, in RestoreV2's format, or empty for the whole value.
    """
    import tensorflow as tf

    dtype = tf.dtypes.as_dtype(stored)
    with _reading(f"the data of {prefix.name}", prefix):
        value = tf.raw_ops.RestoreV2(prefix=str(prefix), tensor_names=[key], shape_and_slices=[part], dtypes=[dtype])[0]
    return value if dtype == wanted else tf.cast(value, wanted)


@contextlib.contextmanager
def _reading(what: str, prefix: Path) -> Iterator[None]:
    import tensorflow as tf

    try:
        yield
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
        raise SourceUnreadable(f"cannot read {what}: {_reason(error, prefix)}") from error


# TensorFlow's messages for incomplete files, and their meanings.
_NOT_WHOLE = (
    ("not an sstable", "it is truncated or not the index of a checkpoint"),
    ("Read less bytes than requested", "it is truncated"),
    ("No such file or directory", "{file} is missing"),
    ("Checksum does not match", "it is damaged, because its checksums do not match"),
)


def _reason(error: Exception, prefix: Path) -> str:
    """Return TensorFlow's first line without the directory. For incomplete files, return the meaning and advice."""
    reason = reason_of(error).replace(f"{prefix.parent}/", "")
    for words, meaning in _NOT_WHOLE:
        if words in reason:
            meaning_text = meaning.format(file=reason.partition(";")[0])
            return f"{meaning_text}. Copy all of {prefix.name}.* again, or export an earlier checkpoint"
    return reason
