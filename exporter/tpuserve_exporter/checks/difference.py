"""Compares two sets of answers: tolerance, largest and mean difference, and top-1 agreement."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tpuserve_exporter.terms.signature import Array, Tensors


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Allowed differences. An element may differ by `atol + rtol * |expected|`. `top1` is the least top-1 agreement."""

    atol: float
    rtol: float
    top1: float = 0.0

    @classmethod
    def choose(cls, computes_in: str, converted: bool, atol: float | None, rtol: float | None) -> "Tolerance":
        """Return the given tolerance, or a few units in the last place of the coarsest dtype that the model uses.

        bfloat16 has 8 bits of mantissa (a unit is 0.4 to 0.8 %), and float16 11 bits (0.05 to 0.1 %). Kernels for other
        batch sizes round at other places. A model `converted` to another compute dtype rounds everywhere differently.
        int8 weights have 127 steps, so without a given tolerance the classes must agree too.
        """
        if computes_in == "int8" and atol is None and rtol is None:
            return cls(5e-2, 5e-2, 0.9)
        wide = converted or computes_in == "int8"
        default = cls(5e-2, 5e-2) if wide else COARSE.get(computes_in) or cls(1e-5, 1e-4)
        return cls(default.atol if atol is None else atol, default.rtol if rtol is None else rtol)

    def __str__(self) -> str:
        classes = f", and the same first class in {self.top1:.0%} of rows" if self.top1 else ""
        return f"{self.atol:g} + {self.rtol:g} * |expected|{classes}"


# Dtypes coarser than float32, coarsest first.
COARSE = {"bfloat16": Tolerance(2e-2, 2e-2), "float16": Tolerance(2.5e-3, 2.5e-3)}


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """Difference of one output over `elements` elements. Outside floats, an element that differs counts as 1.

    In `agreeing` of `ranked` rows, the largest element is at the same place. Both are 0 if the output has no class
    scores. `beyond` describes a difference outside the tolerance, or is empty.
    """

    max_abs: float
    mean_abs: float
    elements: int
    agreeing: int = 0
    ranked: int = 0
    beyond: str = ""

    @property
    def top1_agreement(self) -> float | None:
        return self.agreeing / self.ranked if self.ranked else None

    def to_json(self) -> dict[str, Any]:
        """Return the values for JSON. None stands for an infinite difference, which JSON does not have."""
        return {
            "max_abs_difference": self.max_abs if np.isfinite(self.max_abs) else None,
            "mean_abs_difference": self.mean_abs if np.isfinite(self.mean_abs) else None,
            "top1_agreement": self.top1_agreement,
        }


def merge(differences: Iterable[OutputDifference]) -> OutputDifference:
    """Return the difference of one output over several comparisons. Each element counts once per comparison."""
    found = list(differences)
    elements = sum(one.elements for one in found)
    total = sum(one.mean_abs * one.elements for one in found if one.elements)
    return OutputDifference(
        max_abs=max((one.max_abs for one in found), default=0.0),
        mean_abs=total / elements if elements else max((one.mean_abs for one in found), default=0.0),
        elements=elements,
        agreeing=sum(one.agreeing for one in found),
        ranked=sum(one.ranked for one in found),
        beyond=next((one.beyond for one in found if one.beyond), ""),
    )


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference of two answers, by output. `others` describes differing output names, or is empty."""

    outputs: Mapping[str, OutputDifference]
    others: str = ""

    @property
    def max_abs(self) -> float:
        return np.inf if self.others else max((one.max_abs for one in self.outputs.values()), default=0.0)

    @property
    def is_misshapen(self) -> bool:
        """Whether names or shapes of outputs differ, and not only values."""
        return bool(self.others) or any(one.beyond and not one.elements for one in self.outputs.values())

    @property
    def beyond(self) -> str:
        """Description of the first difference outside the tolerance, or an empty string."""
        return self.others or next((one.beyond for one in self.outputs.values() if one.beyond), "")


def compare(expected: Tensors, actual: Tensors, tolerance: Tolerance) -> Difference:
    """Compare floats within the tolerance, with NaN equal to NaN, and all other values exactly."""
    if expected.keys() != actual.keys():
        return Difference({}, f"the outputs are {sorted(actual)} instead of {sorted(expected)}")
    return Difference(
        {
            name: _compare_arrays(name, np.asarray(value), np.asarray(actual[name]), tolerance)
            for name, value in expected.items()
        }
    )


def _compare_arrays(name: str, expected: Array, actual: Array, tolerance: Tolerance) -> OutputDifference:
    if expected.shape != actual.shape:
        beyond = f"output {name!r} has shape {list(actual.shape)} instead of {list(expected.shape)}"
        return OutputDifference(np.inf, np.inf, 0, beyond=beyond)
    if expected.dtype == object or expected.dtype.kind in "biuSU":
        unequal = np.asarray(expected != actual)
        count = int(np.sum(unequal))
        beyond = f"output {name!r} differs in {count} element(s)" if count else ""
        return OutputDifference(float(count > 0), count / max(unequal.size, 1), unequal.size, beyond=beyond)
    found = merge(_compare_floats(*pieces, tolerance) for pieces in zip(split(expected), split(actual), strict=True))
    return replace(found, beyond=f"output {name!r} differs by up to {found.max_abs:.3g}") if found.beyond else found


# Elements to compare at a time: their copies in float64 take some 7 MB, however large the outputs are.
_PIECE = 2**17


def split(value: Array) -> Iterator[Array]:
    """Yield the array in pieces of limited size: whole rows of scores [rows, classes], or flat pieces otherwise."""
    flat = value if value.ndim == 2 else value.reshape(-1)
    step = max(1, _PIECE // max(1, flat[:1].size))
    return (flat[start : start + step] for start in range(0, len(flat), step))


def _compare_floats(expected: Array, actual: Array, tolerance: Tolerance) -> OutputDifference:
    """Compare in float64 or complex128, because arithmetic in bfloat16 (kind V) is too coarse.

    `beyond` of the result is empty or not, without a description.
    """
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    want, got = expected.astype(wide), actual.astype(wide)
    same = (want == got) | (np.isnan(want) & np.isnan(got))
    with np.errstate(invalid="ignore"):
        gaps = np.where(same, 0.0, np.abs(want - got))
        excess = gaps - (tolerance.atol + tolerance.rtol * np.abs(want))
    gaps = np.nan_to_num(gaps, nan=np.inf, posinf=np.inf)
    largest = float(gaps.max(initial=0.0))
    within = bool(np.all(same | (excess <= 0)))
    agreeing, ranked = _count_top1(want, got) if wide is np.float64 else (0, 0)
    return OutputDifference(
        max_abs=largest,
        mean_abs=float(gaps.mean()) if gaps.size else 0.0,
        elements=gaps.size,
        agreeing=agreeing,
        ranked=ranked,
        beyond="" if within else "differs",
    )


def _count_top1(want: Array, got: Array) -> tuple[int, int]:
    """Count the rows of scores [rows, classes ≥ 2] with the same best class, and all rows. Equal best scores agree."""
    if want.ndim != 2 or want.shape[1] < 2:
        return 0, 0
    best, chosen = want.argmax(axis=1), got.argmax(axis=1)
    rows = np.arange(len(want))
    return int(np.sum((best == chosen) | (want[rows, best] == want[rows, chosen]))), len(want)


def is_float(value: Array) -> bool:
    """Return whether the array takes NaN: numpy's floats, and bfloat16, whose kind in numpy is V."""
    return value.dtype.kind == "f" or value.dtype.name == "bfloat16"
