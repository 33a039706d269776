"""Which stored variable belongs to which variable of a model.

Two ways, of which the better fit is taken. By name (`conv1/kernel`) survives layers added, removed or moved. By
position in the object graph, as tf.train.Checkpoint restores, survives names that were counted otherwise (`dense_3` for
`dense`).
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tpuserve_exporter.errors import CheckpointMismatch
from tpuserve_exporter.restore_report import Entry, Fate
from tpuserve_exporter.sources.object_graph import ROOT, ObjectGraph, StoredVariable

if TYPE_CHECKING:
    import keras

_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
# Of several models in one checkpoint, the one to serve: tf.train.Checkpoint(model=..., ema=...).
_PREFERRED = "model"
_COUNT = re.compile(r"_\d+(?=/|$)")


@dataclass(frozen=True, slots=True)
class Matching:
    """Stored variables by the index of the model's variable they belong to, and those of that model left over.

    `root` is what the checkpoint calls the object they are under, empty for its root itself. `rivals` are others that
    would have fitted as well.
    """

    root: str
    pairs: Mapping[int, StoredVariable]
    leftover: Sequence[StoredVariable]
    by_position: bool
    rivals: tuple[str, ...] = ()

    def fit(self, weights: "Sequence[keras.Variable]") -> tuple[int, bool, int]:
        """Higher is better: pairs of one shape, by name, little left over (much where nothing fits: that says most)."""
        left = len(self.leftover)
        return self.same_shape(weights), not self.by_position, -left if self.pairs else left

    def same_shape(self, weights: "Sequence[keras.Variable]") -> int:
        return sum(tuple(weights[index].shape) == stored.shape for index, stored in self.pairs.items())

    @property
    def nodes(self) -> frozenset[int]:
        return frozenset(stored.node for stored in self.pairs.values())

    @property
    def uncounted_names(self) -> list[str]:
        """Names without the numbers Keras tells layers of one kind apart by: `dense_3/kernel` is `dense/kernel`."""
        return sorted(_COUNT.sub("", stored.name) for stored in self.pairs.values())


def match(model: "keras.Model", graph: ObjectGraph) -> Matching:
    """The best fit between the model and the root of the checkpoint or one of its children.

    Of several that fit as well (averaged weights beside the trained ones), the one called `model`. Raises
    CheckpointMismatch where none is called so: any choice would be a guess.
    """
    weights = model.weights
    best_of_each = [_match_root(model, graph, name, node) for name, node in {"": ROOT, **graph.models()}.items()]
    best = max(best_of_each, key=lambda candidate: candidate.fit(weights))
    tied = [best, *(one for one in best_of_each if _is_rival(one, best, weights))]
    chosen = next((one for one in tied if one.root == _PREFERRED), None)
    if len(tied) > 1 and chosen is None:
        names = ", ".join(f"'{one.root}'" for one in tied)
        raise CheckpointMismatch(
            f"{graph.prefix.name} holds several models that fit alike: {names}; save the one to serve as '{_PREFERRED}'"
        )
    chosen = chosen or best
    return replace(chosen, rivals=tuple(one.root for one in tied if one is not chosen))


def other_models(graph: ObjectGraph, known: Set[int]) -> dict[str, list[StoredVariable]]:
    """Variables of what else the checkpoint's root holds, by its name there, without those `known`."""
    seen, others = set(known), dict[str, list[StoredVariable]]()
    for name, root in graph.models().items():
        found = [variable for node, variable in graph.model_variables(root).items() if node not in seen]
        seen.update(variable.node for variable in found)
        if found:
            others[name] = found
    return others


def _match_root(model: "keras.Model", graph: ObjectGraph, name: str, root: int) -> Matching:
    stored = graph.model_variables(root)
    by_name, by_position = _pair_by_name(model.weights, stored.values()), _pair_by_position(model, graph, root)
    candidates = (
        Matching(name, by_name, _leftover(stored, by_name), by_position=False),
        Matching(name, by_position, _leftover(stored, by_position), by_position=True),
    )
    return max(candidates, key=lambda candidate: candidate.fit(model.weights))


def _is_rival(one: Matching, best: Matching, weights: "Sequence[keras.Variable]") -> bool:
    """Whether `one` is another object that fits as well. A name is a better fit, but not for its number alone."""
    if one.nodes == best.nodes or not best.same_shape(weights):
        return False
    if (one.same_shape(weights), len(one.leftover)) != (best.same_shape(weights), len(best.leftover)):
        return False
    return one.by_position == best.by_position or one.uncounted_names == best.uncounted_names


def compare(weights: "Sequence[keras.Variable]", matching: Matching) -> list[Entry]:
    """One entry for every variable of the model, then one for every stored variable left over."""
    entries = [_compare_one(variable, matching.pairs.get(index)) for index, variable in enumerate(weights)]
    return entries + [Entry(stored.name, Fate.UNUSED, checkpoint=str(stored)) for stored in matching.leftover]


def _compare_one(variable: "keras.Variable", stored: StoredVariable | None) -> Entry:
    shape, dtype = tuple(variable.shape), str(variable.dtype)
    described = f"{dtype}{list(shape)}"
    if stored is None:
        return Entry(variable.path, Fate.MISSING, model=described)
    return Entry(variable.path, _fate(shape, dtype, stored), model=described, checkpoint=str(stored))


def _fate(shape: tuple[int, ...], dtype: str, stored: StoredVariable) -> Fate:
    if shape != stored.shape:
        return Fate.SHAPE
    if dtype == stored.dtype:
        return Fate.MATCHED
    return Fate.CAST if {dtype, stored.dtype} <= _FLOATS else Fate.DTYPE


def _pair_by_name(weights: "Sequence[keras.Variable]", stored: Iterable[StoredVariable]) -> dict[int, StoredVariable]:
    """Whole names; or layer and variable alone where one side puts the model's own name before them."""
    stored = list(stored)
    whole = _pair_names([variable.path for variable in weights], [variable.name for variable in stored], stored)
    if whole:
        return whole
    return _pair_names([_short(v.path) for v in weights], [_short(v.name) for v in stored], stored)


def _pair_names(
    wanted: Sequence[str], names: Sequence[str], stored: Sequence[StoredVariable]
) -> dict[int, StoredVariable]:
    """Names that are there twice on either side tell nothing."""
    unique = {name for name, count in Counter(names).items() if count == 1}
    unique -= {name for name, count in Counter(wanted).items() if count > 1}
    by_name = dict(zip(names, stored, strict=True))
    return {index: by_name[name] for index, name in enumerate(wanted) if name in unique}


def _short(name: str) -> str:
    return "/".join(name.split("/")[-2:])


def _pair_by_position(model: "keras.Model", graph: ObjectGraph, root: int) -> dict[int, StoredVariable]:
    """Walk the model's objects and the stored ones side by side, along edges of one name."""
    import tensorflow as tf

    index_of = {id(variable): index for index, variable in enumerate(model.weights)}
    pairs: dict[int, StoredVariable] = {}
    seen, queue = {id(model)}, [(model, root)]
    for thing, node in queue:
        if id(thing) in index_of and node in graph.variables:
            pairs[index_of[id(thing)]] = graph.variables[node]
        for name, child in tf.train.TrackableView.children(thing).items():
            if name in graph.children[node] and id(child) not in seen:
                seen.add(id(child))
                queue.append((child, graph.children[node][name]))
    return pairs


def _leftover(stored: Mapping[int, StoredVariable], pairs: Mapping[int, StoredVariable]) -> list[StoredVariable]:
    used = {variable.node for variable in pairs.values()}
    return [variable for node, variable in stored.items() if node not in used]
