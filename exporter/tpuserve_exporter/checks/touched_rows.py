"""Counts the rows of tables, such as embeddings, that the samples of the checks touch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpuserve_exporter.graphs.graph_walk import Walk
from tpuserve_exporter.graphs.lookups import PROGRAM, Lookup, Lookups
from tpuserve_exporter.graphs.program_lookups import Probe
from tpuserve_exporter.terms.signature import Signature, Tensors
from tpuserve_exporter.version.loaded_model import SessionModel

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

_PROBE = "/indices"


@dataclass(frozen=True, slots=True)
class TouchedTable:
    """A table, and how many of its `rows` the samples touch."""

    name: str
    touched: int
    rows: int

    def __str__(self) -> str:
        return f"{self.name}: {self.touched} of {self.rows} rows"


def count_touched(session: SessionModel, samples: Mapping[str, Tensors]) -> tuple[TouchedTable, ...]:
    """Compute the row numbers of every lookup for the samples by signature. A table that cannot be seen is omitted."""
    touched: dict[tuple[str, int], set[int]] = {}
    for name, inputs in samples.items():
        for lookup, indices in _read_indices(session, session.signatures[name], inputs):
            rows = np.unique(np.asarray(indices).astype(np.int64))
            found = touched.setdefault((lookup.table, lookup.rows), set())
            found |= set(rows[(rows >= 0) & (rows < lookup.rows)].tolist())
    return tuple(TouchedTable(name, len(found), rows) for (name, rows), found in sorted(touched.items()))


def _read_indices(
    session: SessionModel, signature: Signature, inputs: Tensors
) -> "Iterator[tuple[Lookup, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]]":
    lookups = session.inputs.lookups(signature)
    tables = [one for one in lookups.found if one.table and one.rows]
    seen = [one for one in tables if one.result is not None or _is_tensor(one, lookups)]
    tensors = list(dict.fromkeys(map(_tensor, seen)))
    if not tensors:
        return
    values = session.evaluate(_part(lookups, seen), tensors, signature, inputs)
    for one in seen:
        if (value := values.get(_tensor(one))) is not None:
            yield one, value


def _is_tensor(lookup: Lookup, lookups: Lookups) -> bool:
    """Return whether the row numbers come from the graph and not from a program without a probe."""
    return not any(node.name == lookup.index and node.op == PROGRAM for node in lookups.flat.node)


def _tensor(lookup: Lookup) -> str:
    if lookup.result is None:
        return lookup.index
    return f"{lookup.index}{_PROBE}" + (f":{lookup.result}" if lookup.result else "")


def _part(lookups: Lookups, seen: Sequence[Lookup]) -> "GraphDef":
    """Return the part of the graph that computes row numbers, without control inputs."""
    walk = Walk(lookups.flat)
    programs = {one.index for one in seen if one.result is not None}
    inputs = [name for one in programs for name in walk.nodes[one].input]
    needed = walk.reached([*(one.index for one in seen if one.result is None), *inputs])
    part = type(lookups.flat)()
    part.versions.CopyFrom(lookups.flat.versions)
    for node in needed.values():
        _add(part, node)
    for name in programs:
        _make_probe(_add(part, walk.nodes[name]), lookups.probes[name])
    return part


def _add(part: "GraphDef", node: "NodeDef") -> "NodeDef":
    added = part.node.add()
    added.CopyFrom(node)
    del added.input[:]
    added.input.extend(one for one in node.input if one[0] != "^")
    return added


def _make_probe(node: "NodeDef", probe: Probe) -> None:
    """Make a call of a program return row numbers, which are integers of any shape."""
    import tensorflow as tf

    node.name += _PROBE
    node.attr["module"].s = probe.module
    del node.attr["Tout"].list.type[:]
    del node.attr["Sout"].list.shape[:]
    for dtype in probe.dtypes:
        node.attr["Tout"].list.type.append(tf.dtypes.as_dtype(dtype).as_datatype_enum)
        node.attr["Sout"].list.shape.add().unknown_rank = True
