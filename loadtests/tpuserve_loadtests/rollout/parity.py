"""Golden parity: the differences between two versions' responses to the same requests."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tpuserve_client.dtypes import Array
from tpuserve_client.errors import TpuserveError
from tpuserve_client.exchange import Exchange, PredictCall, Reply
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec, Signature
from tpuserve_loadtests.golden.answers import find_difference, largest_gap
from tpuserve_loadtests.golden.tolerance import Allowed, Tolerance


@dataclass(frozen=True, slots=True)
class Requests:
    """Encoded requests of one version. Both versions have the same order of requests."""

    spec: ModelSpec
    exchanges: tuple[Exchange, ...]


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


def differences(
    send: Callable[[Exchange], Reply], a: Requests, b: Requests, tolerance: Tolerance
) -> Iterator[Compared]:
    """Send each request to A and then to B, and compare B's answer with A's. Blocks for each."""
    for number, (of_a, of_b) in enumerate(zip(a.exchanges, b.exchanges, strict=True)):
        answers = []
        for spec, exchange in ((a.spec, of_a), (b.spec, of_b)):
            try:
                reply = send(exchange)
                answers.append(GrpcWire().read_prediction(reply, PredictCall(spec, {}), None).outputs)
            except TpuserveError as error:
                yield Compared(f"request {number}: {spec}: {error.code.name}: {error.message}")
                break
        if len(answers) == 2:
            problem = _difference(answers[0], answers[1], tolerance)
            yield Compared(f"request {number}: {problem}") if problem else _agreeing(answers[0], answers[1], tolerance)


def _difference(a: Mapping[str, Array], b: Mapping[str, Array], tolerance: Tolerance) -> str:
    if a.keys() != b.keys():
        return f"outputs are {sorted(b)}, were {sorted(a)}"
    found = find_difference(b, a, tolerance)
    return f"output {found.output} {found.words}" if found else ""


def _agreeing(a: Mapping[str, Array], b: Mapping[str, Array], tolerance: Tolerance) -> Compared:
    output, gap = largest_gap(b, a)
    return Compared("", output, gap, tolerance.of(a[output].dtype)) if output else Compared()
