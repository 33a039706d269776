"""Differences between a response and its golden answer."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tpuserve_client.dtypes import Array, describe
from tpuserve_loadtests.golden.tolerance import Allowed, Tolerance


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference in `output`, with `words` for its description."""

    output: str
    words: str


def find_difference(
    answer: Mapping[str, Array], golden: Mapping[str, Array], tolerance: Tolerance
) -> Difference | None:
    """Return the first golden output that is missing or different, or None. Ignore outputs without golden values.

    NaN equals NaN. Comparisons use float64 or complex128, because bfloat16 arithmetic is too coarse.
    """
    for name, want in golden.items():
        if name not in answer:
            return Difference(name, f"is missing; the response has {sorted(answer)}")
        got = answer[name]
        if got.dtype != want.dtype:
            return Difference(name, f"has dtype {describe(got.dtype)} instead of {describe(want.dtype)}")
        if got.shape != want.shape:
            return Difference(name, f"has shape {list(got.shape)} instead of {list(want.shape)}")
        words = _too_far(got, want, tolerance.of(want.dtype)) if is_inexact(want) else _unequal(got, want)
        if words:
            return Difference(name, words)
    return None


def _unequal(got: Array, want: Array) -> str:
    places = np.argwhere(np.asarray(got != want))
    if not len(places):
        return ""
    place = tuple(places[0])
    return f"is {_short(got[place])} instead of {_short(want[place])}{_at(place)}"


def largest_gap(answer: Mapping[str, Array], golden: Mapping[str, Array]) -> tuple[str, float]:
    """Return the float output with the largest difference and that difference, or ("", 0.0) without float outputs.

    Requires that `find_difference` found no difference.
    """
    gaps = {
        name: float(_gaps(answer[name], want).max(initial=0.0)) for name, want in golden.items() if is_inexact(want)
    }
    return max(gaps.items(), key=lambda item: item[1], default=("", 0.0))


def is_inexact(array: Array) -> bool:
    """Return whether an array holds floats or complex numbers, which have a tolerance."""
    return array.dtype != object and array.dtype.kind not in "biuSU"


def _gaps(got: Array, want: Array) -> Array:
    """Return differences by element: 0 if both are NaN or the same infinity, NaN if only one is NaN."""
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    golden, other = want.astype(wide), got.astype(wide)
    with np.errstate(invalid="ignore"):
        same = (golden == other) | (np.isnan(golden) & np.isnan(other))
        return np.where(same, 0.0, np.abs(golden - other))


def _too_far(got: Array, want: Array, allowed: Allowed) -> str:
    gaps = _gaps(got, want)
    with np.errstate(invalid="ignore"):
        limits = allowed.atol + allowed.rtol * np.abs(want.astype(np.complex128))
        # A NaN or an infinity on only one side exceeds every limit.
        excess = np.where(gaps == 0, -1.0, np.nan_to_num(gaps - limits, nan=np.inf, posinf=np.inf))
    if not excess.size or excess.max() <= 0:
        return ""
    place = np.unravel_index(int(excess.argmax()), excess.shape)
    return f"differs by {gaps[place]:.3g}{_at(place)}; allowed {limits[place]:.3g} ({allowed.reason})"


def _at(place: tuple[np.intp, ...]) -> str:
    return f" at row {place[0]}" if place else ""


def _short(value: object) -> str:
    return repr(value.item() if isinstance(value, np.generic) else value)[:40]
