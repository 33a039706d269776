"""Matches stored arrays with the parameters of a JAX model.

A training run stores its parameters at some place in a tree, with optimizer state and more. The search finds the best
stored subtree for each part of the model's tree. A part is a Flax collection such as `params`, or the whole tree.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tpuserve_exporter.errors import OptionConflict
from tpuserve_exporter.models.tree_path import KeyPath, TreeNames, split_keys
from tpuserve_exporter.options.export_options import Rename, Weights, rename
from tpuserve_exporter.sources.part_roles import Role
from tpuserve_exporter.sources.trees.kept_weights import KeptStates
from tpuserve_exporter.sources.trees.weights_choice import PARAMS, Choice, Subtree, choose, find_beside
from tpuserve_exporter.terms.restore_report import ArraySpec

# Keys of the boxes that nnx.Param and linen's Partitioned put around arrays.
_BOXES = ("value", "raw_value")


@dataclass(frozen=True, slots=True)
class TreeMatching:
    """The subtree for each part of the model, and `notes` on the choices.

    `names` are all stored paths after unboxing and --rename, by original path. `rivals` are the roots of other subtrees
    that fit, after --rename. `trained` is the subtree with the trained weights if an average was chosen, or None.
    """

    found: tuple[Subtree, ...]
    names: Mapping[KeyPath, KeyPath]
    states: KeptStates
    rivals: tuple[KeyPath, ...]
    notes: tuple[str, ...]
    trained: Subtree | None = None

    @property
    def pairs(self) -> dict[KeyPath, KeyPath]:
        return {path: stored for subtree in self.found for path, stored in subtree.pairs.items()}

    @property
    def average(self) -> Subtree | None:
        """The chosen average, or None."""
        return next((one for one in self.found if one.is_average), None)


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
    states = KeptStates(originals)
    choices: list[Choice] = []
    # The parameters come first: the other collections have to be those of the same model.
    for part in sorted(_parts(wanted), key=lambda one: one != (PARAMS,)):
        candidates = _find_subtrees(part, wanted, originals, model, stored, states)
        beside = find_beside(choices[0].taken, candidates, part) if choices else None
        rivals = [one for one in candidates if one is not beside and one.is_whole and one.role is not Role.OPTIMIZER]
        choice = Choice(beside, rivals) if beside else None
        choice = choice or choose(candidates, part, weights)
        choices += [choice] if choice else []
    return TreeMatching(
        found=tuple(choice.taken for choice in choices),
        names={original: path for path, original in originals.items()},
        states=states,
        rivals=tuple(one.root for choice in choices for one in choice.rivals),
        notes=tuple(choice.note for choice in choices if choice.note),
        trained=next((choice.trained for choice in choices if choice.trained), None),
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
        states = KeptStates(form[1])
        parts = (_find_subtrees(part, *form, model, stored, states) for part in _parts(form[0]))
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
    if PARAMS not in heads or any(len(path) == 1 for path in wanted):
        return [()]
    return [(head,) for head in heads]


def _find_subtrees(
    part: KeyPath,
    wanted: _Originals,
    originals: _Originals,
    model: Mapping[KeyPath, ArraySpec],
    stored: Mapping[KeyPath, ArraySpec],
    states: KeptStates,
) -> list[Subtree]:
    """Return every stored subtree that shares a path with this part of the model."""
    tails = {path[len(part) :]: original for path, original in wanted.items() if path[: len(part)] == part}
    pairs: dict[KeyPath, dict[KeyPath, KeyPath]] = {}
    for path, original in originals.items():
        for depth in range(len(path) or 1):  # a tree that is one array has an empty path
            if path[depth:] in tails:
                pairs.setdefault(path[:depth], {})[tails[path[depth:]]] = original
    return [
        Subtree(
            root,
            found,
            sum(model[one].shape == stored[other].shape for one, other in found.items()),
            len(tails),
            states.role(root),
            states.holding(root),
        )
        for root, found in pairs.items()
    ]
