"""Golden parity: the differences between two versions' responses to the same requests."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tpuserve_client.dtypes import Array
from tpuserve_client.model import Signature
from tpuserve_loadtests.golden.answers import GoldenAnswers, find_difference, largest_gap
from tpuserve_loadtests.golden.tolerance import Allowed, Tolerance
from tpuserve_loadtests.requests.protocols import TITLES, Protocol

# Answers of a version to single requests, as PredictResponse messages, by protocol. Protocols over which the version
# answers the same request differently are missing.
Answers: TypeAlias = Mapping[Protocol, tuple[bytes, ...]]


@dataclass(frozen=True, slots=True)
class Parity:
    """The comparison of both versions, by request. If `signature` has a difference, no request was sent."""

    answers: "tuple[Compared, ...]"
    signature: str = ""

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
    """Compare B's answers with A's, which both versions gave to the same requests over the same protocols."""
    for protocol, theirs in a.items():
        if protocol not in b:
            yield Compared(f"{TITLES[protocol]}: only the new version answers the same request differently")
            continue
        of_a, of_b = GoldenAnswers(theirs, tolerance), GoldenAnswers(b[protocol], tolerance)
        for number in range(len(of_a)):
            before, after = of_a.outputs(number), of_b.outputs(number)
            problem = _difference(before, after, tolerance)
            where = f"{TITLES[protocol]} request {number}"
            yield Compared(f"{where}: {problem}") if problem else _agreeing(before, after, tolerance)


def _difference(a: Mapping[str, Array], b: Mapping[str, Array], tolerance: Tolerance) -> str:
    if a.keys() != b.keys():
        return f"outputs are {sorted(b)}, were {sorted(a)}"
    found = find_difference(b, a, tolerance)
    return f"output {found.output} {found.words}" if found else ""


def _agreeing(a: Mapping[str, Array], b: Mapping[str, Array], tolerance: Tolerance) -> Compared:
    output, gap = largest_gap(b, a)
    return Compared("", output, gap, tolerance.of(a[output].dtype)) if output else Compared()
