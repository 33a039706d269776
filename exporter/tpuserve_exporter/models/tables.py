"""The lookup tables of a model (`tf.lookup`), without those of Keras' own lookup layers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tpuserve_exporter.models.layer_states import is_lookup


@dataclass(frozen=True, slots=True)
class Table:
    """A table. `name` is the shortest path of attributes to it. Checkpoints hold the entries of a `mutable` one."""

    name: str
    table: Any
    mutable: bool

    def describe(self) -> str:
        return describe_entries(int(self.table.size()))


def describe_entries(count: int) -> str:
    return f"{count} {'entry' if count == 1 else 'entries'}"


def list_tables(model: Any) -> list[Table]:  # noqa: ANN401 - anything that tf.train.Checkpoint tracks
    """Return the tables of a model, each once."""
    return list(_walk(model))


def _walk(model: Any) -> Iterator[Table]:  # noqa: ANN401 - anything trackable
    import tensorflow as tf

    static = (tf.lookup.StaticHashTable, tf.lookup.StaticVocabularyTable)
    mutable = (tf.lookup.experimental.MutableHashTable, tf.lookup.experimental.DenseHashTable)
    seen, queue = {id(model)}, [("", model)]
    for path, thing in queue:
        if isinstance(thing, (*static, *mutable)):
            yield Table(path, thing, isinstance(thing, mutable))
        elif not is_lookup(thing):
            for name, child in tf.train.TrackableView.children(thing).items():
                if id(child) not in seen:
                    seen.add(id(child))
                    queue.append((f"{path}/{name}".removeprefix("/"), child))
