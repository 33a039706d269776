"""Differences between responses to the same request: the first one, in words, and those between two versions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from tpuserve_client.dtypes import Array, describe
from tpuserve_client.model import Signature
from tpuserve_formats.counted import counted
from tpuserve_loadtests.golden.tolerance import Allowed, Tolerance
from tpuserve_loadtests.requests.protocols import TITLES, Protocol
from tpuserve_loadtests.requests.wires import decode_golden

# Answers of a version to single requests, as PredictResponse messages, by protocol. Protocols over which the version
# answers the same request differently are missing.
Answers: TypeAlias = Mapping[Protocol, tuple[bytes, ...]]

# Differences that a report shows.
MOST_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference in `output`, with `words` for its description."""

    output: str
    words: str

    def __str__(self) -> str:
        return f"output {self.output!r} {self.words}"


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


def is_inexact(array: Array) -> bool:
    return array.dtype != object and array.dtype.kind not in "biuSU"


def wide_dtype(array: Array) -> type[np.complex128] | type[np.float64]:
    """Return the dtype for arithmetic with the values of a float or complex array."""
    return np.complex128 if array.dtype.kind == "c" else np.float64


def _unequal(got: Array, want: Array) -> str:
    places = np.argwhere(np.asarray(got != want))
    return f"differs{_values(got, want, tuple(places[0]))}" if len(places) else ""


def _too_far(got: Array, want: Array, allowed: Allowed) -> str:
    gaps = _gaps(got, want)
    with np.errstate(invalid="ignore"):
        limits = allowed.atol + allowed.rtol * np.abs(want.astype(wide_dtype(want)))
        excess = np.where(gaps == 0, -1.0, gaps - limits)
    if (excess <= 0).all():
        return ""
    # The maximum is the first NaN, from a NaN or an infinity on only one side.
    place = np.unravel_index(int(excess.argmax()), excess.shape)
    limit = f"allowed {limits[place]:.3g} ({allowed.reason})"
    return f"differs by {gaps[place]:.3g}{_values(got, want, place)}; {limit}"


def _gaps(got: Array, want: Array) -> Array:
    golden, other = want.astype(wide_dtype(want)), got.astype(wide_dtype(want))
    with np.errstate(invalid="ignore"):
        same = (golden == other) | (np.isnan(golden) & np.isnan(other))
        return np.where(same, 0.0, np.abs(golden - other))


def _values(got: Array, want: Array, place: tuple[np.intp, ...]) -> str:
    """Describe an element by its index, of which the first is the row, and by both values."""
    where = f" at [{', '.join(map(str, place))}]" if place else ""
    values = (str(value) if isinstance(value, np.generic) else repr(value)[:40] for value in (got[place], want[place]))
    return f"{where}: {' instead of '.join(values)}"


@dataclass(frozen=True, slots=True)
class Parity:
    """The comparison of two versions, by request. If `signature` has a difference, no response was compared."""

    answers: "tuple[Compared, ...]"
    signature: str = ""

    @property
    def summary(self) -> str:
        if self.signature:
            return f"the signatures differ: {self.signature}"
        responses = counted(len(self.answers), "response")
        if self.different:
            return f"{len(self.different):,} of {responses} differ; {self.different[0]}"
        return "; ".join(filter(None, [f"{len(self.answers):,} of {responses} match", self.largest]))

    @property
    def different(self) -> tuple[str, ...]:
        return tuple(answer.problem for answer in self.answers if answer.problem)

    @property
    def largest(self) -> str:
        """Description of the largest difference among matching responses, with its limit; empty without floats."""
        found = max((answer for answer in self.answers if answer.output), key=lambda each: each.gap, default=None)
        if found is None:
            return ""
        return f"largest difference {found.gap:.3g} in `{found.output}`, allowed {found.allowed}"

    def as_document(self) -> dict[str, Any]:  # plain values of several types
        """Return a JSON document with the first differences."""
        return {
            "responses": len(self.answers),
            "different": len(self.different),
            "differences": [self.signature] if self.signature else list(self.different[:MOST_SHOWN]),
        }


@dataclass(frozen=True, slots=True)
class Compared:
    """The result for one request: a problem, or the float `output` with the largest difference, and its limit."""

    problem: str = ""
    output: str = ""
    gap: float = 0.0
    allowed: Allowed | None = None


def signature_difference(a: Signature, b: Signature) -> str:
    """Describe the difference between the signatures that clients see. Return an empty string if there is none."""
    for what, mine, theirs in (("input", a.inputs, b.inputs), ("output", a.outputs, b.outputs)):
        if mine.keys() != theirs.keys():
            return f"{what}s are {sorted(theirs)}, were {sorted(mine)}"
        for name, spec in mine.items():
            if (spec.dtype, spec.shape) != (theirs[name].dtype, theirs[name].shape):
                return f"{what} is {theirs[name]}, was {spec}"
    return ""


def differences(a: Answers, b: Answers, tolerance: Tolerance) -> Iterator[Compared]:
    """Compare B's answers with A's, which both versions gave to the same requests over the same protocols.

    Further answers of one version are ignored.
    """
    for protocol, of_a in a.items():
        if protocol not in b:
            yield Compared(f"{TITLES[protocol]}: only the new version answers the same request differently")
            continue
        for number, encoded in enumerate(zip(of_a, b[protocol], strict=False)):
            if not all(encoded):  # an answer is unknown
                continue
            before, after = map(decode_golden, encoded)
            problem = _difference(before, after, tolerance)
            where = f"{TITLES[protocol]} request {number}"
            yield Compared(f"{where}: {problem}") if problem else _agreeing(before, after, tolerance)


def _difference(a: Mapping[str, Array], b: Mapping[str, Array], tolerance: Tolerance) -> str:
    if a.keys() != b.keys():
        return f"outputs are {sorted(b)}, were {sorted(a)}"
    return str(find_difference(b, a, tolerance) or "")


def _agreeing(a: Mapping[str, Array], b: Mapping[str, Array], tolerance: Tolerance) -> Compared:
    """Return the float output with the largest difference."""
    gaps = {name: float(_gaps(b[name], want).max(initial=0.0)) for name, want in a.items() if is_inexact(want)}
    output = max(gaps, key=lambda name: gaps[name], default="")
    return Compared("", output, gaps[output], tolerance.of(a[output].dtype)) if output else Compared()
