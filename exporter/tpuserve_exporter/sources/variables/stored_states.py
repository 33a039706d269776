"""Content of an object checkpoint besides variables: mutable lookup tables, and the IDF weights of Keras' lookups."""

from collections.abc import Mapping
from typing import Any

from tpuserve_exporter.models.layer_states import IDF_WEIGHTS, SavedLayers, list_states, lookup_of
from tpuserve_exporter.models.tables import Table, describe_entries, list_tables
from tpuserve_exporter.sources.variables.matching import walk_together
from tpuserve_exporter.sources.variables.object_graph import ObjectGraph, StoredTable, restore_tensor
from tpuserve_exporter.sources.variables.state_matching import compare_states, fill_states, missing_tables
from tpuserve_exporter.terms.provenance import Origin, OriginKind
from tpuserve_exporter.terms.restore_report import Entry, Fate
from tpuserve_exporter.terms.signature import Array


class StoredStates(SavedLayers):
    """The states at the object `root` of a checkpoint for a model, matched by position."""

    def __init__(self, model: Any, graph: ObjectGraph, root: int) -> None:  # noqa: ANN401 - Keras or tf.Module
        self._model = model
        self._graph = graph
        self._root = root
        nodes = {id(thing): node for thing, node in walk_together(model, graph, root)}
        self._lookups = {one.path: nodes.get(id(lookup_of(one.layer) or one.layer)) for one in list_states(model)}
        mutable = [one for one in list_tables(model) if one.mutable]
        self._tables = [(one, graph.tables.get(nodes.get(id(one.table), -1))) for one in mutable]

    def arrays(self, path: str) -> Mapping[str, Array]:
        node = self._lookups.get(path)
        stored = None if node is None else self._graph.variables.get(self._graph.children[node].get(IDF_WEIGHTS, -1))
        return {} if stored is None else {IDF_WEIGHTS: self._graph.read(stored)}

    def compare(self) -> list[Entry]:
        """Compare states and tables of both sides. `restore_tables` has yet to restore the tables."""
        taken = {stored.node for _, stored in self._tables if stored is not None}
        unused = [one for node, one in self._graph.model_tables(self._root).items() if node not in taken]
        fill_states(self._model, self)
        return [
            *compare_states(self._model, self),
            *missing_tables(self._model, [one for one, _ in self._tables]),
            *(_compare(one, stored) for one, stored in self._tables),
            *(Entry(one.keys.name, Fate.UNUSED, checkpoint=describe_entries(one.count)) for one in unused),
        ]

    def restore_tables(self) -> None:
        """Replace the entries of the model's tables by the stored ones. Raises SourceUnreadable."""
        import tensorflow as tf

        for one, stored in self._tables:
            if stored is not None:
                keys, values = (
                    restore_tensor(self._graph.prefix, part.key, part.dtype, tf.dtypes.as_dtype(part.dtype))
                    for part in (stored.keys, stored.values)
                )
                tf.raw_ops.LookupTableImportV2(table_handle=one.table.resource_handle, keys=keys, values=values)


def _compare(own: Table, stored: StoredTable | None) -> Entry:
    if stored is None:
        return Entry(own.name, Fate.MISSING, own.describe())
    same = (own.table.key_dtype.name, own.table.value_dtype.name) == (stored.keys.dtype, stored.values.dtype)
    fate = Fate.MATCHED if same else Fate.DTYPE
    origin = Origin(OriginKind.VOCABULARY)
    return Entry(own.name, fate, own.describe(), describe_entries(stored.count), origin=origin)
