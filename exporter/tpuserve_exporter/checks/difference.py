"""How far one set of answers is from another: what counts as the same, the largest and mean difference, top-1."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpuserve_exporter.signature import Array, Tensors


@dataclass(frozen=True, slots=True)
class Tolerance:
    """An element may differ by `atol + rtol * |expected|`. In `top1` of the rows the same class comes first."""

    atol: float
    rtol: float
    top1: float = 0.0

    @classmethod
    def choose(cls, computes_in: str, converted: bool, atol: float | None, rtol: float | None) -> "Tolerance":
        """What was asked for, else a few units in the last place of the coarsest dtype that the model computes in.

        bfloat16 has 8 bits of mantissa (a unit is 0.4 to 0.8 %) and float16 11 (0.05 to 0.1 %), and kernels for other
        batch sizes round at other places. `converted` to another compute dtype, a model rounds everywhere else. In int8
        it has 127 steps, wherever it has weights, so that classes count too; unless another tolerance was asked for.
        """
        if computes_in == "int8" and atol is None and rtol is None:
            return cls(5e-2, 5e-2, 0.9)
        wide = converted or computes_in == "int8"
        default = cls(5e-2, 5e-2) if wide else COARSE.get(computes_in) or cls(1e-5, 1e-4)
        return cls(default.atol if atol is None else atol, default.rtol if rtol is None else rtol)

    def __str__(self) -> str:
        classes = f", the same class first in {self.top1:.0%} of rows" if self.top1 else ""
        return f"{self.atol:g} + {self.rtol:g} * |expected|{classes}"


# Of dtypes coarser than float32, the coarsest first.
COARSE = {"bfloat16": Tolerance(2e-2, 2e-2), "float16": Tolerance(2.5e-3, 2.5e-3)}


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """How far one output is off, over `elements` elements. Of what is no float, an element that differs counts as 1.

    `agreeing` of `ranked` rows have their largest element at the same place; 0 of 0 for outputs that are no scores of
    classes. `beyond` says what is outside the tolerance; empty when nothing is.
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
        """None stands for an infinite difference, which JSON does not have."""
        return {
            "max_abs_difference": self.max_abs if np.isfinite(self.max_abs) else None,
            "mean_abs_difference": self.mean_abs if np.isfinite(self.mean_abs) else None,
            "top1_agreement": self.top1_agreement,
        }


def merge(differences: Iterable[OutputDifference]) -> OutputDifference:
    """One output over several comparisons, each element of each counted once."""
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
    """How far one answer is from another, by output. `others` says so where the outputs are not even the same."""

    outputs: Mapping[str, OutputDifference]
    others: str = ""

    @property
    def max_abs(self) -> float:
        return np.inf if self.others else max((one.max_abs for one in self.outputs.values()), default=0.0)

    @property
    def is_misshapen(self) -> bool:
        """True if the names or shapes of outputs differ, and not only values."""
        return bool(self.others) or any(one.beyond and not one.elements for one in self.outputs.values())

    @property
    def beyond(self) -> str:
        """What is outside the tolerance, of the first output that is; empty when nothing is."""
        return self.others or next((one.beyond for one in self.outputs.values() if one.beyond), "")


def compare(expected: Tensors, actual: Tensors, tolerance: Tolerance) -> Difference:
    """Floats within the tolerance, NaN equal to NaN; everything else exactly."""
    if expected.keys() != actual.keys():
        return Difference({}, f"outputs {sorted(actual)} instead of {sorted(expected)}")
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
    return _compare_floats(name, expected, actual, tolerance)


def _compare_floats(name: str, expected: Array, actual: Array, tolerance: Tolerance) -> OutputDifference:
    """In float64, or complex128: bfloat16 (kind V) has no arithmetic of its own worth comparing in."""
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
        beyond="" if within else f"output {name!r} is off by up to {largest:.3g}",
    )


def _count_top1(want: Array, got: Array) -> tuple[int, int]:
    """Rows of scores [rows, classes ≥ 2] whose best class is the same, of how many. Of two equals either is best."""
    if want.ndim != 2 or want.shape[1] < 2:
        return 0, 0
    best, chosen = want.argmax(axis=1), got.argmax(axis=1)
    rows = np.arange(len(want))
    return int(np.sum((best == chosen) | (want[rows, best] == want[rows, chosen]))), len(want)
