"""Matches stored variables, or their moving averages, with the variables of a model.

The best of three ways wins. A match by name (`conv1/kernel`) allows added, removed and moved layers. A match by
position in the object graph, as tf.train.Checkpoint restores, allows names with other numbers (`dense_3` for `dense`).
A match by count takes layers of one kind in the order of their numbers. It also allows that object graphs of Keras 2
and 3 differ.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from tpuserve_exporter.errors import CheckpointMismatch
from tpuserve_exporter.options.export_options import WEIGHTS, Weights
from tpuserve_exporter.sources.variables.averages import (
    OPTIMIZER,
    are_empty,
    check_averages,
    find_averages,
    is_averaged_model,
)
from tpuserve_exporter.sources.variables.object_graph import ROOT, ObjectGraph, StoredVariable
from tpuserve_exporter.terms.provenance import Origin, OriginKind
from tpuserve_exporter.terms.restore_report import ArraySpec, Entry, Fate

if TYPE_CHECKING:
    import tensorflow as tf


@dataclass(frozen=True, slots=True)
class ModelVariable:
    """One variable. `node` is its object in the model's object graph: Keras' wrapper, or the TensorFlow variable."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    node: Any
    variable: "tf.Variable"

    @property
    def spec(self) -> ArraySpec:
        return ArraySpec(self.dtype, self.shape)


def model_variables(model: Any) -> list[ModelVariable]:  # noqa: ANN401 - a Keras model, or any tf.Module
    """Return the variables that a checkpoint of the model holds, in the model's order.

    Keras layers give their weights, without the state of random generators. A tf.Module's own list of variables lacks
    those of objects that are not modules, such as TPU embedding tables and Keras 3 objects.
    """
    return [_describe(variable) for variable in _distinct(_walk(model))]


def _walk(model: Any) -> Iterator[Any]:  # noqa: ANN401 - anything that tf.train.Checkpoint tracks
    import keras
    import tensorflow as tf

    seen, queue = {id(model)}, [model]
    for thing in queue:
        weights = getattr(thing, "weights", None)
        if isinstance(thing, tf.Variable):
            yield thing
        elif isinstance(weights, list):
            # Keras 2 lists the vocabularies of its lookup layers among the weights, too.
            yield from (one for one in weights if isinstance(one, keras.Variable | tf.Variable))
        else:
            children = [one for one in tf.train.TrackableView.children(thing).values() if id(one) not in seen]
            seen |= {id(one) for one in children}
            queue += children


def _distinct(variables: Iterable[Any]) -> list[Any]:
    return list({id(variable): variable for variable in variables}.values())


def _describe(variable: Any) -> ModelVariable:  # noqa: ANN401 - a variable of Keras 3 or of TensorFlow
    import keras

    if isinstance(variable, keras.Variable):
        return ModelVariable(variable.path, str(variable.dtype), tuple(variable.shape), variable, variable.value)
    name = variable.name.removesuffix(":0")
    return ModelVariable(name, variable.dtype.name, tuple(variable.shape), variable, variable)


# If a checkpoint has several models, the name of the one to serve: tf.train.Checkpoint(model=..., teacher=...).
_PREFERRED = "model"
_COUNTED = re.compile(r"(.+?)(?:_(\d+))?")


class Way(IntEnum):
    """How the pairs were found. If several ways fit equally, the highest wins."""

    COUNT = 0
    POSITION = 1
    NAME = 2


@dataclass(frozen=True, slots=True)
class Matching:
    """Stored variables by the index of the matching variable of the model, and the model's other stored variables.

    `root` is the checkpoint's name for the object that holds them, empty for the root object. `rivals` are other
    objects that fit equally. `averages` replace the variables of `pairs`. `detail` has the evidence that they are some.
    """

    root: str
    pairs: Mapping[int, StoredVariable]
    leftover: Sequence[StoredVariable]
    way: Way
    rivals: tuple[str, ...] = ()
    averages: Mapping[int, StoredVariable] = field(default_factory=dict)
    detail: str = ""

    @classmethod
    def of(cls, pairs: Mapping[int, StoredVariable], stored: Sequence[StoredVariable], way: Way) -> "Matching":
        """Return the matching of a file that has a single model, with all `stored` variables of it."""
        used = {one.node for one in pairs.values()}
        return cls("", pairs, [one for one in stored if one.node not in used], way)

    def fit(self, weights: Sequence[ModelVariable]) -> tuple[int, Way, int]:
        """Return a sort key, higher for a better fit: pairs of the same shape, the way, and the number of leftovers.

        Fewer leftovers are better. Without any pair, more are better, because the report then shows the most.
        """
        left = len(self.leftover)
        return self.same_shape(weights), self.way, -left if self.pairs else left

    def same_shape(self, weights: Sequence[ModelVariable]) -> int:
        return sum(weights[index].shape == stored.shape for index, stored in self.pairs.items())

    @property
    def taken(self) -> dict[int, StoredVariable]:
        """Stored values for the model's variables, with averages instead of trained values."""
        return {**self.pairs, **self.averages}

    def origin(self, index: int, variable: ModelVariable) -> Origin:
        """Return the origin of the value for the model's variable number `index`."""
        taken = self.taken.get(index)
        stored = None if taken is None or taken.name == variable.name else taken.name
        if index not in self.averages:
            return Origin(part=self.root, stored=stored)
        part = self.root if is_averaged_model(self.root) else OPTIMIZER
        return Origin(OriginKind.AVERAGE, part, self.detail, stored)

    @property
    def nodes(self) -> frozenset[int]:
        return frozenset(stored.node for stored in [*self.pairs.values(), *self.averages.values()])

    @property
    def uncounted_names(self) -> list[str]:
        """Names without the numbers by which Keras distinguishes layers: `dense_3/kernel` is `dense/kernel`."""
        return sorted("/".join(_uncount(part)[0] for part in one.name.split("/")) for one in self.pairs.values())


def match(model: Any, weights: Sequence[ModelVariable], graph: ObjectGraph, wanted: Weights) -> Matching:  # noqa: ANN401 - anything trackable
    """Return the best match between the model and the checkpoint's root or one of its children.

    If several objects fit equally, prefer one that holds averages if `wanted` allows it, then the one named `model`.
    Raises CheckpointMismatch if several remain and none has that name, because any choice would be a guess. Also raises
    it if the checkpoint does not have the `wanted` weights.
    """
    roots = {**graph.models(), "": ROOT}  # the root last, if no single model fits as well
    inner = graph.inner_models()
    if wanted in inner:
        roots[wanted] = inner[wanted]
    best_of_each = [_match_root(model, weights, graph, name, node) for name, node in roots.items()]
    # One part of a module may share as many variables with the model as the whole module.
    best = max(best_of_each, key=lambda candidate: (candidate.fit(weights), len(candidate.pairs)))
    # Any object fits a model without variables.
    if weights and (best.leftover or best.same_shape(weights) < len(weights)) and wanted in WEIGHTS:
        _refuse_inner(model, weights, graph, inner, best)
    tied = [best, *(one for one in best_of_each if _is_rival(one, best, weights))]
    chosen = _choose(tied, graph, wanted) if wanted in WEIGHTS else _find_named(best_of_each, graph, wanted)
    rivals = tuple(one.root for one in tied if one is not chosen)
    return _average(replace(chosen, rivals=rivals), tied, graph, wanted)


def _refuse_inner(
    model: Any,  # noqa: ANN401 - anything trackable
    weights: Sequence[ModelVariable],
    graph: ObjectGraph,
    inner: Mapping[str, int],
    best: Matching,
) -> None:
    """Raise CheckpointMismatch if models within other objects fit: the network of an agent, and its target.

    A single one may be a part of the `best` match, whose other variables --allow-unused ignores.
    """
    matched = (_match_root(model, weights, graph, name, node) for name, node in inner.items())
    fitting = [one.root for one in matched if one.same_shape(weights) == len(weights) and not one.leftover]
    if len(fitting) > 1 or (fitting and best.same_shape(weights) < len(weights)):
        names = ", ".join(f"'{name}'" for name in fitting)
        raise CheckpointMismatch(
            f"{graph.prefix.name} has the model within another object: {names}. Choose one with --weights {fitting[0]}"
        )


def _find_named(matched: Sequence[Matching], graph: ObjectGraph, wanted: Weights) -> Matching:
    """Return the match with the model that --weights names. Raises CheckpointMismatch if there is none."""
    found = next((one for one in matched if one.root == wanted), None)
    if found is None:
        names = ", ".join(f"'{one.root}'" for one in matched if one.root) or "none"
        raise CheckpointMismatch(f"--weights {wanted}: {graph.prefix.name} has no model of this name. It has {names}")
    return found


def _choose(tied: Sequence[Matching], graph: ObjectGraph, wanted: Weights) -> Matching:
    averaged = [one for one in tied if is_averaged_model(one.root)]
    trained = [one for one in tied if one not in averaged]
    if wanted == "raw" and not trained:
        raise CheckpointMismatch(f"--weights raw: only '{averaged[0].root}' of {graph.prefix.name} fits the model")
    candidates = averaged if averaged and wanted != "raw" else trained
    chosen = next((one for one in candidates if one.root == _PREFERRED), candidates[0])
    if len(candidates) > 1 and chosen.root != _PREFERRED:
        names = ", ".join(f"'{one.root}'" for one in candidates)
        raise CheckpointMismatch(
            f"{graph.prefix.name} has several models that fit equally well: {names}. Save the one to serve as "
            f"'{_PREFERRED}', or choose one with --weights {chosen.root}"
        )
    return chosen


def _average(chosen: Matching, tied: Sequence[Matching], graph: ObjectGraph, wanted: Weights) -> Matching:
    """Add the averages to take. Raises CheckpointMismatch if there are none that `wanted` requires, or no such ones."""
    if wanted == "raw":
        return chosen
    if is_averaged_model(chosen.root):
        trained = [one for one in tied if not is_averaged_model(one.root)]
        beside = next((one for one in trained if one.root == _PREFERRED), trained[0] if trained else None)
        names = f"'{chosen.root}'", f"'{beside.root}'" if beside else ""
        detail = beside and check_averages(chosen.pairs, beside.pairs, graph, *names, wanted == "auto")
        return replace(chosen, averages=dict(chosen.pairs), detail=detail or "")
    averages = find_averages(graph) if wanted in WEIGHTS else {}
    pairs = {index: averages[stored.node] for index, stored in chosen.pairs.items() if stored.node in averages}
    found = {index: stored for index, stored in pairs.items() if stored.shape == chosen.pairs[index].shape}
    if are_empty(found, graph):
        found = {}
    if wanted == "ema" and chosen.pairs and not found:
        raise CheckpointMismatch(
            f"--weights ema: {graph.prefix.name} has no moving averages of these variables (an optimizer's use_ema, "
            "slots named 'average', or a model named 'ema'). Use --weights raw"
        )
    detail = check_averages(
        found, chosen.pairs, graph, "the optimizer's average", "the weights as trained", wanted == "auto"
    )
    return replace(chosen, averages=found, detail=detail)


def other_models(graph: ObjectGraph, known: Set[int]) -> dict[str, list[StoredVariable]]:
    """Return the variables of the root's other models, by model name, without those in `known`."""
    seen, others = set(known), dict[str, list[StoredVariable]]()
    for name, root in graph.models().items():
        found = [variable for node, variable in graph.model_variables(root).items() if node not in seen]
        seen.update(variable.node for variable in found)
        if found:
            others[name] = found
    return others


def _match_root(model: Any, weights: Sequence[ModelVariable], graph: ObjectGraph, name: str, root: int) -> Matching:  # noqa: ANN401 - anything trackable
    stored = graph.model_variables(root)
    ways = {
        Way.NAME: pair_by_name(weights, stored.values()),
        Way.POSITION: _pair_by_position(model, weights, graph, root),
        Way.COUNT: pair_by_count(weights, stored.values()),
    }
    candidates = [Matching(name, pairs, _leftover(stored, pairs), way) for way, pairs in ways.items()]
    return max(candidates, key=lambda candidate: candidate.fit(weights))


def _is_rival(one: Matching, best: Matching, weights: Sequence[ModelVariable]) -> bool:
    """Return whether `one` is another object that fits equally. A name that differs only by its number is no worse."""
    if one.nodes == best.nodes or len(one.pairs) != len(best.pairs) or not best.same_shape(weights):
        return False
    if (one.same_shape(weights), len(one.leftover)) != (best.same_shape(weights), len(best.leftover)):
        return False
    return one.way == best.way or one.uncounted_names == best.uncounted_names


def compare(weights: Sequence[ModelVariable], matching: Matching) -> list[Entry]:
    """Return an entry for every variable of the model, then for every stored variable that remains."""
    taken = matching.taken
    entries = [
        Entry.compare(variable.name, variable.spec, _spec(taken.get(index)), matching.origin(index, variable))
        for index, variable in enumerate(weights)
    ]
    return entries + [Entry(stored.name, Fate.UNUSED, checkpoint=str(stored.spec)) for stored in matching.leftover]


def _spec(stored: StoredVariable | None) -> ArraySpec | None:
    return None if stored is None else stored.spec


def pair_by_name(weights: Sequence[ModelVariable], stored: Iterable[StoredVariable]) -> dict[int, StoredVariable]:
    """Pair equal names. If there are none, compare only layer and variable: one side may have the model's name."""
    stored = list(stored)
    mine, theirs = [one.name for one in weights], [one.name for one in stored]
    pairs = _pair_names(mine, theirs, stored)
    return pairs or _pair_names([_short(name) for name in mine], [_short(name) for name in theirs], stored)


def pair_by_count(weights: Sequence[ModelVariable], stored: Iterable[StoredVariable]) -> dict[int, StoredVariable]:
    """Pair names after counting the layers of each kind again: `dense_7` and `dense_9` are the first and second."""
    stored = list(stored)
    mine, theirs = [one.name for one in weights], [one.name for one in stored]
    pairs = _pair_names(_recount(mine), _recount(theirs), stored)
    return pairs or _pair_names(
        _recount([_short(name) for name in mine]), _recount([_short(name) for name in theirs]), stored
    )


def _recount(names: Sequence[str]) -> list[str]:
    counts = defaultdict[tuple[str, str], set[int]](set)
    for name in names:
        for parent, kind, count in _counted_parts(name):
            counts[parent, kind].add(count)
    ranks = {key: sorted(found) for key, found in counts.items()}
    return [
        "/".join(f"{kind}#{ranks[parent, kind].index(count)}" for parent, kind, count in _counted_parts(name))
        for name in names
    ]


def _counted_parts(name: str) -> "Iterator[tuple[str, str, int]]":
    """Yield for each part of a name its parent, its kind, and its number (-1 if it has none)."""
    parent = ""
    for part in name.split("/"):
        yield parent, *_uncount(part)
        parent += f"{part}/"


def _uncount(part: str) -> tuple[str, int]:
    found = _COUNTED.fullmatch(part)
    return (found[1], int(found[2] or -1)) if found else (part, -1)


def _pair_names(
    wanted: Sequence[str], names: Sequence[str], stored: Sequence[StoredVariable]
) -> dict[int, StoredVariable]:
    """Pair equal names, without names that occur twice on one side, because those are ambiguous."""
    unique = {name for name, count in Counter(names).items() if count == 1}
    unique -= {name for name, count in Counter(wanted).items() if count > 1}
    by_name = dict(zip(names, stored, strict=True))
    return {index: by_name[name] for index, name in enumerate(wanted) if name in unique}


def _short(name: str) -> str:
    return "/".join(name.split("/")[-2:])


def _pair_by_position(
    model: Any,  # noqa: ANN401 - anything trackable
    weights: Sequence[ModelVariable],
    graph: ObjectGraph,
    root: int,
) -> dict[int, StoredVariable]:
    index_of = {id(one.node): index for index, one in enumerate(weights)}
    return {
        index_of[id(thing)]: graph.variables[node]
        for thing, node in walk_together(model, graph, root)
        if id(thing) in index_of and node in graph.variables
    }


def walk_together(model: Any, graph: ObjectGraph, root: int) -> Iterator[tuple[Any, int]]:  # noqa: ANN401 - anything trackable
    """Yield the model's objects with the stored ones at the same position, along edges of the same name."""
    import tensorflow as tf

    seen, queue = {id(model)}, [(model, root)]
    for thing, node in queue:
        yield thing, node
        for name, child in tf.train.TrackableView.children(thing).items():
            if name in graph.children[node] and id(child) not in seen:
                seen.add(id(child))
                queue.append((child, graph.children[node][name]))


def _leftover(stored: Mapping[int, StoredVariable], pairs: Mapping[int, StoredVariable]) -> list[StoredVariable]:
    used = {variable.node for variable in pairs.values()}
    return [variable for node, variable in stored.items() if node not in used]
