"""Chooses the stored subtree whose values a JAX model gets: the trained weights, an average, or what --weights names.

Optimizer state has the parameters' names and shapes, too. The choice never takes it unless --weights names it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tpuserve_exporter.errors import CheckpointMismatch
from tpuserve_exporter.models.tree_path import KeyPath
from tpuserve_exporter.options.export_options import WEIGHTS, Weights
from tpuserve_exporter.sources.part_roles import Role, is_optimizer_key, role_of
from tpuserve_exporter.sources.trees.kept_weights import KeptState, ScheduleFreeState, keeps_parameters
from tpuserve_exporter.terms.provenance import Origin, OriginKind

# If several subtrees fit, the preferred names. They also apply to a subtree of that name within another.
_PREFERRED = ("params", "model", "state")
# The collection of Flax linen with the trained weights.
PARAMS = "params"


@dataclass(frozen=True, slots=True)
class Subtree:
    """A stored subtree that fits a part of the model. `pairs` are original stored paths by the model's original paths.

    `root` is the path after --rename. `size` is the number of values in the model's part. `kept` is the state of optax
    that keeps these values, or None.
    """

    root: KeyPath
    pairs: Mapping[KeyPath, KeyPath]
    same_shape: int
    size: int
    role: Role
    kept: KeptState | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the subtree has every value of the model's part, in its shape."""
        return self.same_shape == len(self.pairs) == self.size

    @property
    def option(self) -> str:
        """The value of --weights that chooses the subtree."""
        return "/".join(self.kept.place) if isinstance(self.kept, ScheduleFreeState) else self.name

    @property
    def is_known(self) -> bool:
        """Whether the subtree has weights, as far as names and forms show. Moments of gradients are none."""
        return self.role is not Role.OPTIMIZER or self.is_average or keeps_parameters(self.root)

    @property
    def name(self) -> str:
        """The name for --weights."""
        return "/".join(self.root)

    @property
    def fit(self) -> tuple[int, int]:
        return self.same_shape, len(self.pairs)

    @property
    def is_average(self) -> bool:
        """Whether the values are an average of weights, as far as names and forms show."""
        return self.kept is not None or any(role_of([key]) is Role.AVERAGE for key in self.root)

    def origin(self, stored: str | None) -> Origin:
        """Return the origin of the subtree's value with the name `stored`, or with the model's name."""
        return Origin(OriginKind.AVERAGE if self.is_average else OriginKind.PARAMETERS, self.name, stored=stored)

    def __str__(self) -> str:
        return f"'{self.name}'" if self.root else "the root"


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen subtree of one part, and others that fit. `trained` has the trained weights if an average is taken."""

    taken: Subtree
    rivals: Sequence[Subtree]
    note: str = ""
    trained: Subtree | None = None


def choose(candidates: Sequence[Subtree], part: KeyPath, weights: Weights) -> Choice | None:
    """Choose the subtree for one part of the model. Return None if none fits.

    Raises CheckpointMismatch if several subtrees fit equally, or if `weights` requires a part that there is not.
    """
    is_main = part in ((), (PARAMS,))
    in_optimizer = any(map(is_optimizer_key, part))
    trained = _best([one for one in candidates if one.role is Role.MODEL or (in_optimizer and not one.is_average)])
    averages = _best([one for one in candidates if one.role is Role.AVERAGE])
    if weights not in WEIGHTS or (weights == "ema" and not averages):
        if named := [one for one in candidates if f"{one.name}/".startswith(f"{weights}/")]:
            return _choose_named(named, trained, part, weights)
        if is_main:
            raise CheckpointMismatch(_describe_missing(candidates, weights))
    kept = [one for one in candidates if one.role is Role.OPTIMIZER and one.is_known and one.is_whole]
    by_average = _takes_average(trained, averages, weights)
    tied = averages if by_average else trained
    if not tied:
        if is_main and kept:
            raise CheckpointMismatch(f"only optimizer state fits the model. {_advise(kept)}")
        return None
    chosen = _prefer(tied, part)
    rivals = [one for one in (*averages, *trained) if one is not chosen]
    if by_average and is_main:
        instead = _prefer(trained, part) if trained else None
        raw = f" (--weights raw uses {instead})" if instead else ""
        return Choice(chosen, rivals, f"used the moving average of the weights, {chosen}{raw}", instead)
    others = ", ".join(str(one) for one in tied if one is not chosen)
    note = f"used {chosen} of the checkpoint, although {others} would also fit" if others else ""
    if is_main and weights == "auto" and not note:
        note = _describe_unused(chosen, kept) or _describe_partial(chosen, candidates)
    return Choice(chosen, rivals, note)


def find_beside(params: Subtree, candidates: Sequence[Subtree], part: KeyPath) -> Subtree | None:
    """Return the whole collection next to these parameters: `teacher/batch_stats`, `ema_batch_stats`, or None."""
    *parents, last = params.root or ("",)
    root = (*parents, last.replace(PARAMS, part[-1])) if PARAMS in last else None
    return next((one for one in candidates if one.root == root and one.is_whole), None)


def _choose_named(named: Sequence[Subtree], trained: Sequence[Subtree], part: KeyPath, weights: Weights) -> Choice:
    """Choose the part that --weights names. Raises CheckpointMismatch if it is optimizer state of another kind."""
    known = [one for one in named if one.is_known]
    if not known:
        raise CheckpointMismatch(
            f"--weights {weights}: {_prefer(_best(named), part)} is optimizer state, and neither an average nor the "
            "parameters. From optimizer state, the exporter takes only averages (optax.ema), the weights of "
            "optax.contrib.schedule_free, and parameters named target or model. Use --weights raw"
        )
    chosen = _prefer(_best(known), part)
    if chosen.role is Role.OPTIMIZER and not chosen.is_whole:
        raise CheckpointMismatch(
            f"--weights {weights}: {chosen} does not have the form of the parameters: {chosen.same_shape} of "
            f"{chosen.size} have the same name and shape. Use --weights raw"
        )
    others = [one for one in trained if one is not chosen]
    preferred = [one for one in others if not one.root or one.root[-1] in (*part, *_PREFERRED)] or others
    return Choice(chosen, others, trained=preferred[0] if len(preferred) == 1 else None)


def _describe_missing(candidates: Sequence[Subtree], weights: Weights) -> str:
    kept = [one for one in candidates if one.role is Role.OPTIMIZER and one.is_known and one.is_whole]
    advice = f". {_advise(kept)}" if kept else ""
    if weights == "ema":
        return (
            "--weights ema: the checkpoint has no moving average. No fitting part of it is named ema, average, avg, "
            f"polyak or swa. Use --weights raw{advice}"
        )
    fitting = ", ".join(str(one) for one in candidates if one.is_whole and one.is_known) or "none"
    return f"--weights {weights}: the checkpoint has no part of this name that fits the model. These fit: {fitting}"


def _advise(kept: Sequence[Subtree]) -> str:
    """Describe parts of optimizer state that fit, and how to use one."""
    names = ", ".join(map(str, kept))
    return f"Optimizer state that fits: {names}. If it holds weights, use --weights {kept[0].option}"


def _describe_unused(chosen: Subtree, kept: Sequence[Subtree]) -> str:
    """Return a note on weights for serving that the optimizer may keep, or an empty string."""
    for one in kept:
        if isinstance(one.kept, ScheduleFreeState):
            return (
                f"{chosen} has the weights for training, because the optimizer is schedule-free. --weights "
                f"{one.option} computes those for evaluation"
            )
        if one.is_average:
            return (
                f"did not use {one}, because it may be an average of gradients. If it is one of weights, use --weights "
                f"{one.option}"
            )
    return ""


def _describe_partial(chosen: Subtree, candidates: Sequence[Subtree]) -> str:
    """Return a note on parts with some of the model's parameters: those that were trained, or an average of these."""
    partial = [
        f"{one} ({len(one.pairs)} of {one.size})"
        for one in candidates
        if one.role is not Role.OPTIMIZER
        and one.same_shape == len(one.pairs) < one.size
        and one.root[: len(chosen.root)] != chosen.root
        and chosen.root[: len(one.root)] != one.root
    ]
    if not partial:
        return ""
    return (
        f"used {chosen} of the checkpoint. Other parts have some of the model's parameters, too: {', '.join(partial)}. "
        "If the model needs those, save one tree with all its parameters"
    )


def _takes_average(trained: Sequence[Subtree], averages: Sequence[Subtree], weights: Weights) -> bool:
    """Return whether to take the average. With `auto`, take it if it fits at least as well as the trained weights."""
    if not averages or weights not in ("auto", "ema"):
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
    # A preferred name deeper in the tree than others may be in another model: `initial/params` next to `weights`.
    is_first = len(shortest[0].root) == min(len(one.root) for one in tied)
    if len(shortest) == 1 and ((any(best) and is_first) or len(tied) == 1):
        return shortest[0]
    name = "/".join(shortest[0].root)
    other = "" if rank(shortest[0])[0] else f", or --rename '^{re.escape(name)}/=params/'"
    raise CheckpointMismatch(
        f"several parts of the checkpoint fit equally well: {', '.join(map(str, tied))}. Choose the model's part with "
        f"--weights {name}{other}"
    )
