"""Matches stored arrays with the parameters of a JAX model.

A training run stores its parameters at some place in a tree, with optimizer state and more. The search finds the best
stored subtree for each part of the model's tree. A part is a Flax collection such as `params`, or the whole tree.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tpuserve_exporter.errors import CheckpointMismatch, OptionConflict
from tpuserve_exporter.models.tree_path import KeyPath, TreeNames, split_keys
from tpuserve_exporter.options.export_options import Rename, Weights, rename
from tpuserve_exporter.terms.provenance import Origin, OriginKind
from tpuserve_exporter.terms.restore_report import ArraySpec

# Common keys for these parts of a training state.
OPTIMIZER = re.compile(r"opt|optim|tx|optimizers?(_states?)?|opt_?states?")
AVERAGE = re.compile(r"(.*_)?(ema|averaged?|avg|polyak|swa)(_.*)?")
# If several subtrees fit, the preferred names. They also apply to a subtree of that name within another.
_PREFERRED = ("params", "model", "state")
# Keys of the boxes that nnx.Param and linen's Partitioned put around arrays.
_BOXES = ("value", "raw_value")
_PARAMS = "params"


@dataclass(frozen=True, slots=True)
class Subtree:
    """A stored subtree that fits a part of the model. `pairs` are original stored paths by the model's original paths.

    `root` is the path after --rename.
    """

    root: KeyPath
    pairs: Mapping[KeyPath, KeyPath]
    same_shape: int

    @property
    def is_average(self) -> bool:
        return any(AVERAGE.fullmatch(key) for key in self.root)

    @property
    def is_optimizer(self) -> bool:
        """Whether the subtree is optimizer state. Momentum has the parameters' names and shapes. Averages are not."""
        return any(OPTIMIZER.fullmatch(key) for key in self.root) and not self.is_average

    @property
    def fit(self) -> tuple[int, int]:
        return self.same_shape, len(self.pairs)

    def origin(self, stored: str | None) -> Origin:
        """Return the origin of the subtree's value with the name `stored`, or with the model's name."""
        kind = OriginKind.AVERAGE if self.is_average else OriginKind.PARAMETERS
        return Origin(kind, "/".join(self.root), stored=stored)

    def __str__(self) -> str:
        return f"'{'/'.join(self.root)}'" if self.root else "the root"


@dataclass(frozen=True, slots=True)
class TreeMatching:
    """The subtree for each part of the model, and `notes` on the choices.

    `names` are all stored paths after unboxing and --rename, by original path. `rivals` are the roots of other subtrees
    that fit, after --rename.
    """

    found: tuple[Subtree, ...]
    names: Mapping[KeyPath, KeyPath]
    rivals: tuple[KeyPath, ...]
    notes: tuple[str, ...]

    @property
    def pairs(self) -> dict[KeyPath, KeyPath]:
        return {path: stored for subtree in self.found for path, stored in subtree.pairs.items()}


@dataclass(frozen=True, slots=True)
class _Choice:
    taken: Subtree
    rivals: Sequence[Subtree]
    note: str


def match_trees(
    model: Mapping[KeyPath, ArraySpec],
    stored: Mapping[KeyPath, ArraySpec],
    weights: Weights = "auto",
    renames: Sequence[Rename] = (),
) -> TreeMatching:
    """Return the best match of every part.

    Raises CheckpointMismatch if several subtrees fit equally, or if `weights` requires an average and there is none.
    """
    wanted, originals = _best_form(model, stored, renames)
    choices = [
        choice
        for part in _parts(wanted)
        if (choice := _choose(_find_subtrees(part, wanted, originals, model, stored), part, weights))
    ]
    return TreeMatching(
        found=tuple(choice.taken for choice in choices),
        names={original: path for path, original in originals.items()},
        rivals=tuple(one.root for choice in choices for one in choice.rivals),
        notes=tuple(choice.note for choice in choices if choice.note),
    )


_Originals: TypeAlias = Mapping[KeyPath, KeyPath]


def _best_form(
    model: Mapping[KeyPath, ArraySpec], stored: Mapping[KeyPath, ArraySpec], renames: Sequence[Rename]
) -> tuple[_Originals, _Originals]:
    """Return the original paths of model and checkpoint by the compared ones, with keys whole or split at slashes.

    One side may have `mlp/~/linear_0` as one key, and the other `mlp` with `~` within. --rename makes either form.
    """
    unsplit = unbox(model), _rename(unbox(stored), TreeNames(stored), renames)
    apart = _split(unsplit[0]), _split(unsplit[1])
    if apart[0] is None or apart[1] is None:
        return unsplit
    split = apart[0], apart[1]

    def count_fit(form: tuple[_Originals, _Originals]) -> int:
        parts = (_find_subtrees(part, *form, model, stored) for part in _parts(form[0]))
        return sum(max((len(one.pairs) for one in found), default=0) for found in parts)

    return split if count_fit(split) > count_fit(unsplit) else unsplit


def _split(paths: _Originals) -> _Originals | None:
    """Return the paths with keys split at slashes, or None if two paths would become one."""
    apart = {split_keys(path): original for path, original in paths.items()}
    return apart if len(apart) == len(paths) else None


def unbox(paths: Iterable[KeyPath]) -> dict[KeyPath, KeyPath]:
    """Return the original paths by the paths without the boxes around arrays."""
    paths = list(paths)
    bare = {path: path[:-1] if len(path) > 1 and path[-1] in _BOXES else path for path in paths}
    taken = set(paths)
    return {short if short == path or short not in taken else path: path for path, short in bare.items()}


def _rename(paths: _Originals, names: TreeNames, renames: Sequence[Rename]) -> dict[KeyPath, KeyPath]:
    """Return the original paths by their names after --rename. Raises OptionConflict if two arrays get one name."""
    renamed: dict[KeyPath, KeyPath] = {}
    for path, original in paths.items():
        before = names.name(path)
        name = rename(before, renames)
        new = path if name == before else names.path(name)
        if new in renamed:
            raise OptionConflict(
                f"--rename gives {names.name(renamed[new])} and {names.name(original)} the same name, {name}"
            )
        renamed[new] = original
    return renamed


def _parts(wanted: Iterable[KeyPath]) -> list[KeyPath]:
    """Return a prefix for each collection of Flax linen variables, or only an empty one for any other tree."""
    heads = list(dict.fromkeys(path[0] for path in wanted if len(path) > 1))
    if _PARAMS not in heads or any(len(path) == 1 for path in wanted):
        return [()]
    return [(head,) for head in heads]


def _find_subtrees(
    part: KeyPath,
    wanted: _Originals,
    originals: _Originals,
    model: Mapping[KeyPath, ArraySpec],
    stored: Mapping[KeyPath, ArraySpec],
) -> list[Subtree]:
    """Return every stored subtree that shares a path with this part of the model."""
    tails = {path[len(part) :]: original for path, original in wanted.items() if path[: len(part)] == part}
    pairs: dict[KeyPath, dict[KeyPath, KeyPath]] = {}
    for path, original in originals.items():
        for depth in range(len(path) or 1):  # a tree that is one array has an empty path
            if path[depth:] in tails:
                pairs.setdefault(path[:depth], {})[tails[path[depth:]]] = original
    return [
        Subtree(root, found, sum(model[one].shape == stored[other].shape for one, other in found.items()))
        for root, found in pairs.items()
    ]


def _choose(candidates: Sequence[Subtree], part: KeyPath, weights: Weights) -> _Choice | None:
    takes_optimizer = any(OPTIMIZER.fullmatch(key) for key in part)
    trained = _best([one for one in candidates if not one.is_average and (takes_optimizer or not one.is_optimizer)])
    averages = _best([one for one in candidates if one.is_average])
    is_main = part in ((), (_PARAMS,))
    if weights == "ema" and not averages and is_main:
        raise CheckpointMismatch(
            "--weights ema: the checkpoint has no moving average. No fitting part of it is named ema, average, avg, "
            "polyak or swa. Use --weights raw"
        )
    by_average = _takes_average(trained, averages, weights)
    tied = averages if by_average else trained
    if not tied:
        return None
    chosen = _prefer(tied, part)
    rivals = [one for one in (*averages, *trained) if one is not chosen]
    if by_average and is_main:
        raw = f" (--weights raw uses {_prefer(trained, part)})" if trained else ""
        return _Choice(chosen, rivals, f"used the moving average of the weights, {chosen}{raw}")
    others = ", ".join(str(one) for one in tied if one is not chosen)
    note = f"used {chosen} of the checkpoint, although {others} would also fit" if others else ""
    return _Choice(chosen, rivals, note)


def _takes_average(trained: Sequence[Subtree], averages: Sequence[Subtree], weights: Weights) -> bool:
    """Return whether to take the average. With `auto`, take it if it fits at least as well as the trained weights."""
    if not averages or weights == "raw":
        return False
    return weights == "ema" or not trained or averages[0].fit >= trained[0].fit


def _best(candidates: Sequence[Subtree]) -> list[Subtree]:
    best = max((one.fit for one in candidates), default=(0, 0))
    return [one for one in candidates if one.fit == best]


def _prefer(tied: Sequence[Subtree], part: KeyPath) -> Subtree:
    """Return the candidate with the preferred name. Raises CheckpointMismatch if names do not decide."""

    def rank(one: Subtree) -> tuple[bool, bool]:
        last = one.root[-1:]
        return last == part or not one.root, bool(last) and last[0] in _PREFERRED

    best = max(map(rank, tied))
    first = [one for one in tied if rank(one) == best]
    shortest = [one for one in first if len(one.root) == min(len(other.root) for other in first)]
    if len(shortest) == 1 and (any(best) or len(tied) == 1):
        return shortest[0]
    name = "/".join(shortest[0].root)
    raise CheckpointMismatch(
        f"several parts of the checkpoint fit equally well: {', '.join(map(str, tied))}. Choose the model's part, "
        f"such as --rename '^{re.escape(name)}/={name}/params/'"
    )
