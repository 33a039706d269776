"""Keys of the lookup tables in a SavedModel, read by a session with the tables alone."""

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef

# Larger tables take too much memory as Python objects.
_MOST_KEYS = 1 << 20
_STORED_KEYS = "table-keys"
_INIT_OPS = ("__saved_model_init_op",)


def read_keys(meta_graph: "MetaGraphDef", path: Path, tables: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """Return the keys of the `tables` by node name. Tables that do not initialize without the model have none."""
    import tensorflow as tf

    nodes = {node.name: node for node in meta_graph.graph_def.node}
    wanted = {name: nodes[name] for name in tables if name in nodes and nodes[name].op.endswith("TableV2")}
    if not wanted:
        return {}
    start = _find_start(meta_graph)
    assets = {info.tensor_info.name: str(path / "assets" / info.filename) for info in meta_graph.asset_file_def}
    needed = {name.split(":")[0] for name in (*wanted, *start, *assets)}
    found: dict[str, tuple[Any, ...]] = {}
    graph = tf.Graph()
    try:
        part = tf.compat.v1.graph_util.extract_sub_graph(meta_graph.graph_def, sorted(needed & nodes.keys()))
        with graph.as_default(), tf.compat.v1.Session(graph=graph) as session:
            tf.graph_util.import_graph_def(part, name="")
            feeds = {name: value for name, value in assets.items() if name.split(":")[0] in needed & nodes.keys()}
            with contextlib.suppress(tf.errors.OpError):  # other tables of the model may need its variables
                session.run([graph.get_operation_by_name(name.split(":")[0]) for name in start], feeds)
            for name, node in wanted.items():
                types = node.attr["key_dtype"].type, node.attr["value_dtype"].type
                found[name] = _export(session, graph.get_tensor_by_name(f"{name}:0"), *types)
    except (tf.errors.OpError, ValueError, KeyError):
        return {}
    stored = _read_stored(path) if not all(found.values()) else {}
    return {name: keys or stored.get(wanted[name].attr["key_dtype"].type, ()) for name, keys in found.items()}


def _find_start(meta_graph: "MetaGraphDef") -> list[str]:
    """Return the operations that initialize tables: of TensorFlow 2, or of TensorFlow 1 as collections."""
    found = [
        info.name
        for name in _INIT_OPS
        if name in meta_graph.signature_def
        for info in meta_graph.signature_def[name].outputs.values()
    ]
    for name in ("saved_model_main_op", "legacy_init_op"):
        found += meta_graph.collection_def[name].node_list.value if name in meta_graph.collection_def else []
    return found


def _export(session: "tf.compat.v1.Session", table: "tf.Tensor", keys: int, values: int) -> tuple[Any, ...]:
    import tensorflow as tf

    try:
        if not 0 < session.run(tf.raw_ops.LookupTableSizeV2(table_handle=table)) <= _MOST_KEYS:
            return ()
        exported, _ = session.run(tf.raw_ops.LookupTableExportV2(table_handle=table, Tkeys=keys, Tvalues=values))
    except tf.errors.OpError:
        return ()
    return _usable(exported)


def _read_stored(path: Path) -> Mapping[int, tuple[Any, ...]]:
    """Return the keys of all mutable tables in the checkpoint, by dtype. Their names do not show the table's node."""
    import tensorflow as tf

    with contextlib.suppress(tf.errors.OpError, ValueError):
        reader = tf.train.load_checkpoint(str(path / "variables" / "variables"))
        found: dict[int, tuple[Any, ...]] = {}
        for name, dtype in reader.get_variable_to_dtype_map().items():
            if name.endswith(_STORED_KEYS) and np.prod(reader.get_variable_to_shape_map()[name]) <= _MOST_KEYS:
                kind = dtype.as_datatype_enum
                found[kind] = (*found.get(kind, ()), *_usable(reader.get_tensor(name)))
        return found
    return {}


def _usable(keys: Any) -> tuple[Any, ...]:  # noqa: ANN401 - an array of any dtype
    """Return the keys in order, without texts that JSON cannot hold."""
    return tuple(sorted(one for one in np.ravel(keys).tolist() if not isinstance(one, bytes) or _is_text(one)))


def _is_text(key: bytes) -> bool:
    with contextlib.suppress(UnicodeDecodeError):
        return bool(key.decode().strip())
    return False
