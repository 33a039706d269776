"""Sorts the stored arrays that are not a model's parameters, by their place in the tree and their names."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tpuserve_exporter.models.tree_path import KeyPath
from tpuserve_exporter.restore_report import ArraySpec
from tpuserve_exporter.sources.orbax.tree_matching import OPTIMIZER, TreeMatching

_RANDOM = re.compile(r"(.*_)?(rngs?|prng|prng_key|random_key)(_.*)?")
# Flax collections that belong to a model. A remaining one shows that the stored model was another one.
_COLLECTIONS = frozenset({"params", "batch_stats"})


@dataclass(slots=True)
class Leftover:
    """Stored paths that the model does not use. `unused` ones belonged to the saved model, but not to the builder's."""

    unused: list[KeyPath] = field(default_factory=list)
    optimizer_state: list[KeyPath] = field(default_factory=list)
    others: dict[str, list[KeyPath]] = field(default_factory=dict)
    bookkeeping: list[KeyPath] = field(default_factory=list)


def sort_leftover(stored: Mapping[KeyPath, ArraySpec], matching: TreeMatching) -> Leftover:
    """Sort every stored array that the matching did not take."""
    taken, leftover = set(matching.pairs.values()), Leftover()
    for path, spec in stored.items():
        if path not in taken:
            _sort(path, matching.names[path], spec, matching, leftover)
    return leftover


def _sort(path: KeyPath, name: KeyPath, spec: ArraySpec, matching: TreeMatching, leftover: Leftover) -> None:
    roots = [subtree.root for subtree in matching.found]
    rival = next((root for root in matching.rivals if _is_within(name, root)), None)
    if rival is not None and not any(len(root) > len(rival) and _is_within(name, root) for root in roots):
        leftover.others.setdefault("/".join(rival), []).append(path)
    elif any(map(_RANDOM.fullmatch, name)):
        leftover.bookkeeping.append(path)
    elif any(root and _is_within(name, root) for root in roots) or _is_collection(name, roots):
        leftover.unused.append(path)
    elif any(OPTIMIZER.fullmatch(key) for key in name[:3]):
        leftover.optimizer_state.append(path)
    elif not spec.shape:
        leftover.bookkeeping.append(path)
    elif () in roots or not roots:
        leftover.unused.append(path)
    else:
        leftover.others.setdefault(_part(name, roots), []).append(path)


def _is_within(name: KeyPath, root: KeyPath) -> bool:
    return name[: len(root)] == root


def _is_collection(name: KeyPath, roots: list[KeyPath]) -> bool:
    """Return whether `name` is next to a found subtree, as a collection of the same model is."""
    parents = {root[:-1] for root in roots} | {()}
    return any(_is_within(name, parent) and _COLLECTIONS.intersection(name[len(parent) :][:1]) for parent in parents)


def _part(name: KeyPath, roots: list[KeyPath]) -> str:
    """Return the part that `name` is in: `teacher`, or `state/teacher` if the model is in `state`, too."""
    shared = max(_count_shared(name, root) for root in roots)
    return "/".join(name[: shared + 1])


def _count_shared(name: KeyPath, root: KeyPath) -> int:
    return next((count for count, (a, b) in enumerate(zip(name, root, strict=False)) if a != b), 0)
