"""Result of matching a checkpoint's variables with a model's. Names decide the match, never values."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from tpuserve_exporter.terms.adapters import MERGE_ADAPTERS, is_adapter
from tpuserve_exporter.terms.provenance import INITIAL, TRAINED, Origin, OriginKind, Origins


class Fate(StrEnum):
    """Result for one variable."""

    MATCHED = "matched"
    CAST = "cast"  # restored into another float dtype
    MISSING = "missing"  # the model has it, the checkpoint does not
    UNUSED = "unused"  # the checkpoint's model has it, the builder's does not
    SHAPE = "shape differs"
    DTYPE = "dtype differs"
    VALUE = "value differs"  # a vocabulary or another value that layers keep in addition to variables
    EMPTY = "empty"  # such a value that neither the model nor the checkpoint has
    SETTING = "setting differs"  # an argument of a layer's constructor
    UNHELD = "not in the format"  # such a value of the model that the checkpoint's format does not hold


# Advice for each fate that makes the checkpoint unfit for the model.
_ADVICE = {
    Fate.SHAPE: "build the model as it was trained (--model-arg sets the function's arguments)",
    Fate.DTYPE: "build the model with the dtypes of the training",
    Fate.MISSING: "rename missing variables that are stored under another name (--rename REGEX=REPL)",
    Fate.UNUSED: "ignore unused variables (--allow-unused GLOB)",
    Fate.VALUE: "build the layer without a vocabulary or statistics, so that the export restores the stored ones",
    Fate.EMPTY: (
        "give the layer its value in the builder (vocabulary=..., adapt), or export a .keras file, which holds it"
    ),
    Fate.SETTING: "build the layer with the settings of the file",
    Fate.UNHELD: (
        "export a .keras file, which holds the values that the training used, or keep those of the builder "
        "(--allow-missing GLOB)"
    ),
}
_KEEP = "or keep the values that the builder gives them (--allow-missing GLOB)"
_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Dtype and shape of a variable on one side. `dtype` is a name from numpy or ml_dtypes."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One variable. `model` and `checkpoint` are like `float32[3, 3, 1, 32]`, or None if that side has none.

    `origin` is that of the value that the checkpoint has for the model's variable.
    """

    name: str
    fate: Fate
    model: str | None = None
    checkpoint: str | None = None
    allowed: bool = False
    origin: Origin = TRAINED

    @classmethod
    def compare(cls, name: str, model: ArraySpec, stored: ArraySpec | None, origin: Origin = TRAINED) -> "Entry":
        """Return the entry of one of the model's variables."""
        checkpoint = None if stored is None else str(stored)
        return cls(name, _fate(model, stored), str(model), checkpoint, origin=origin)

    def to_json(self) -> dict[str, Any]:
        """Return the comparison. The report lists origins apart, also for sources without a comparison."""
        return {
            "name": self.name, "fate": self.fate, "model": self.model, "checkpoint": self.checkpoint,
            "allowed": self.allowed,
        }  # fmt: skip


def _fate(model: ArraySpec, stored: ArraySpec | None) -> Fate:
    if stored is None:
        return Fate.MISSING
    if model.shape != stored.shape:
        return Fate.SHAPE
    if model.dtype == stored.dtype:
        return Fate.MATCHED
    return Fate.CAST if {model.dtype, stored.dtype} <= _FLOATS else Fate.DTYPE


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """All variables of the model and the checkpoint.

    These never make the checkpoint unfit: optimizer state, bookkeeping (step, counters), and other models in the
    checkpoint (averaged weights, a teacher). `other_models` has the latter by their names in the checkpoint.
    """

    entries: tuple[Entry, ...]
    optimizer_state: tuple[str, ...] = ()
    other_models: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    bookkeeping: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def of(self, *fates: Fate) -> list[Entry]:
        return [entry for entry in self.entries if entry.fate in fates]

    @property
    def problems(self) -> list[Entry]:
        """Variables that make the checkpoint unfit for the model, without the allowed ones."""
        return [entry for entry in self.entries if entry.fate not in (Fate.MATCHED, Fate.CAST) and not entry.allowed]

    @property
    def origins(self) -> Origins:
        """The origin of each of the model's variables. Missing ones keep the builder's values."""
        return {
            entry.name: INITIAL if entry.fate in (Fate.MISSING, Fate.UNHELD) else entry.origin
            for entry in self.entries
            if entry.fate not in (Fate.UNUSED, Fate.SETTING)
        }

    def summary(self) -> str:
        counts = [f"{len(found)} {fate}" for fate in Fate if (found := self.of(fate))]
        if averages := sum(one.kind is OriginKind.AVERAGE for one in self.origins.values()):
            counts.append(f"{averages} of them moving averages")
        if self.optimizer_state:
            counts.append(f"{len(self.optimizer_state)} of optimizer state not used")
        counts += [f"{len(names)} of '{root}' not used" for root, names in self.other_models.items()]
        return ", ".join(counts) or "no variables"

    def refusal(self, what: str, may_miss: bool = True) -> str:
        """Return the error message: how many variables of `what` do not fit, and what to do.

        `may_miss`: --allow-missing applies.
        """
        if not self.of(*set(Fate) - {Fate.MISSING, Fate.UNHELD, Fate.UNUSED}):
            of_one = "Use the model that was trained, and a checkpoint of that training"
            remedy = f"To serve adapters, {MERGE_ADAPTERS}" if self._misses_adapters else of_one
            return f"{what}: no variable is in both ({self.summary()}). {remedy}"
        fates = {entry.fate for entry in self.problems}
        advice = [
            f"{text}, {_KEEP}" if fate is Fate.MISSING and may_miss else text
            for fate, text in _ADVICE.items()
            if fate in fates
        ]
        if self._misses_adapters:
            advice.insert(0, MERGE_ADAPTERS)
        both = [
            f". {one.name} has {one.checkpoint} in the checkpoint, but {one.model} in the model"
            for one in self.of(Fate.VALUE, Fate.SETTING)
            if not one.allowed
        ]
        neither = [f". {one.name} has no value, in the checkpoint nor in the model" for one in self.of(Fate.EMPTY)]
        return f"{what}: {self.summary()}{''.join([*both, *neither])}. Possible fixes: {'; '.join(advice)}"

    @property
    def _misses_adapters(self) -> bool:
        return any(is_adapter(one.name) for one in self.problems if one.fate is Fate.UNUSED)

    def to_json(self) -> dict[str, Any]:
        """Return all variables, their counts by fate, and the names of other stored arrays."""
        return {
            "variables": [entry.to_json() for entry in self.entries],
            "counts": {fate.value: len(self.of(fate)) for fate in Fate},
            "optimizer_state": list(self.optimizer_state),
            "other_models": {root: list(names) for root, names in self.other_models.items()},
            "bookkeeping": list(self.bookkeeping),
            "notes": list(self.notes),
        }


def allow(entries: list[Entry], missing: tuple[str, ...], unused: tuple[str, ...]) -> tuple[Entry, ...]:
    """Mark entries that --allow-missing and --allow-unused allow. A differing shape or dtype is never allowed."""
    globs = {Fate.MISSING: missing, Fate.UNHELD: missing, Fate.UNUSED: unused}
    return tuple(
        replace(entry, allowed=True)
        if any(fnmatchcase(entry.name, glob) for glob in globs.get(entry.fate, ()))
        else entry
        for entry in entries
    )
