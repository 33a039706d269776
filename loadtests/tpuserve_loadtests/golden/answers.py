"""Golden answers of a line's requests, and checks of a share of the responses under load against them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

import numpy as np

from tpuserve_client.dtypes import Array, describe
from tpuserve_client.errors import TpuserveError
from tpuserve_client.exchange import PredictCall, Reply
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec, Prediction, Signature, TensorSpec
from tpuserve_loadtests.golden.form import Form, WrongAnswer
from tpuserve_loadtests.golden.tolerance import Allowed, Tolerance
from tpuserve_loadtests.requests.wires import WIRES, predict_call
from tpuserve_loadtests.requests.workload import Line


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
    return array.dtype != object and array.dtype.kind not in "biuSU"


def _wide(array: Array) -> type[np.complex128] | type[np.float64]:
    return np.complex128 if array.dtype.kind == "c" else np.float64


def _gaps(got: Array, want: Array) -> Array:
    golden, other = want.astype(_wide(want)), got.astype(_wide(want))
    with np.errstate(invalid="ignore"):
        same = (golden == other) | (np.isnan(golden) & np.isnan(other))
        return np.where(same, 0.0, np.abs(golden - other))


def _too_far(got: Array, want: Array, allowed: Allowed) -> str:
    gaps = _gaps(got, want)
    with np.errstate(invalid="ignore"):
        limits = allowed.atol + allowed.rtol * np.abs(want.astype(_wide(want)))
        excess = np.where(gaps == 0, -1.0, gaps - limits)
    if (excess <= 0).all():
        return ""
    # The maximum is the first NaN, from a NaN or an infinity on only one side.
    place = np.unravel_index(int(excess.argmax()), excess.shape)
    return f"differs by {gaps[place]:.3g}{_at(place)}; allowed {limits[place]:.3g} ({allowed.reason})"


def _at(place: tuple[np.intp, ...]) -> str:
    return f" at row {place[0]}" if place else ""


def _short(value: object) -> str:
    return repr(value.item() if isinstance(value, np.generic) else value)[:40]


# The search for the request of a wrong response keeps golden answers as float64: 32 MiB at most.
_MOST_ELEMENTS: Final = 4 * 2**20


class GoldenAnswers:
    """Golden answers by number of the request. Belongs to one thread."""

    def __init__(self, encoded: Sequence[bytes], tolerance: Tolerance) -> None:
        self._encoded = tuple(encoded)
        self._tolerance = tolerance
        self._decoded: dict[int, Mapping[str, Array]] = {}
        self._stacks: dict[str, Array | None] = {}

    def __len__(self) -> int:
        return len(self._encoded)

    def outputs(self, number: int) -> Mapping[str, Array]:
        found = self._decoded.get(number)
        if found is None:
            found = self._decoded[number] = (
                GrpcWire()
                .read_prediction(Reply(self._encoded[number]), PredictCall(ModelSpec("golden"), {}), None)
                .outputs
            )
        return found

    def is_finite(self, name: str) -> bool:
        """Return whether golden answers have the output, and all its values are finite."""
        found = [outputs[name] for number in range(len(self)) if name in (outputs := self.outputs(number))]
        return bool(found) and all(np.isfinite(array).all() for array in found)

    def shape(self, number: int, name: str) -> tuple[int, ...] | None:
        """Return the shape of an output in the golden answer to a request, or None if it is unknown."""
        found = self.outputs(number).get(name) if number < len(self) else None
        return None if found is None else found.shape

    def are_alike(self) -> bool:
        """Return whether all requests have the same golden answer, so that checks cannot detect a mix-up."""
        first = self.outputs(0)
        others = range(1, len(self))
        return all(find_difference(self.outputs(other), first, self._tolerance) is None for other in others)

    def has_elsewhere(self, name: str, array: Array) -> bool:
        """Return whether the golden answer of any request has this output; False if there are too many to compare."""
        if name not in self._stacks:
            self._stacks[name] = self._stack(name)
        stack = self._stacks[name]
        if stack is None or array.shape != stack.shape[1:]:
            return False
        if stack.dtype == object:
            return bool((stack == array).reshape(len(stack), -1).all(axis=1).any())
        allowed = self._tolerance.of(array.dtype)
        near = np.isclose(array.astype(stack.dtype), stack, rtol=allowed.rtol, atol=allowed.atol, equal_nan=True)
        return bool(near.reshape(len(stack), -1).all(axis=1).any())

    def _stack(self, name: str) -> Array | None:
        arrays = [self.outputs(number)[name] for number in range(len(self))]
        if len({array.shape for array in arrays}) > 1 or len(arrays) * arrays[0].size > _MOST_ELEMENTS:
            return None
        stack: Array = np.stack(arrays)
        if stack.dtype == object:
            return stack
        return stack.astype(_wide(stack))


# Share of the responses to compare by default, and seconds after which a line's next response is compared anyway.
DEFAULT_SHARE: Final = 0.01
_LONGEST_GAP_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """The comparisons of a run: a random `share` of the responses to requests with golden answers.

    Without a `share`, it is DEFAULT_SHARE, and each line has about 20 comparisons a second, or all at lower rates.
    `tolerances` are by line name. For a line without a tolerance, the limit follows from the dtype of the outputs.
    `versions` are the versions whose answers this run recorded, by line name. Answers of others are not compared.
    """

    share: float | None = None
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)

    def tolerance(self, line: Line) -> Tolerance:
        return self.tolerances.get(line.name, Tolerance())

    def limits(self, lines: Iterable[Line]) -> dict[str, None]:
        """Return the permitted differences as texts, in order, each once. Empty without golden answers."""
        found: dict[str, None] = {}
        for line in lines:
            tolerance = self.tolerance(line)
            outputs = GoldenAnswers(line.golden, tolerance).outputs(0) if line.golden else {}
            found |= dict.fromkeys(str(tolerance.of(array.dtype)) for array in outputs.values() if is_inexact(array))
        return found


class AnswerChecks:
    """The response checks of one process. Belongs to one thread."""

    def __init__(self, lines: Sequence[Line], plan: CheckPlan, seed: int) -> None:
        """Set up the checks. With a share, equal seeds select equal response numbers of a line in this process."""
        self._lines = {line.name: _LineCheck(line, plan, Random(f"{seed} {line.name}")) for line in lines}

    def check(self, line: Line, turn: int, reply: Reply, now_s: float) -> bool:
        """Check the form of a response, and compare the values of a share. Return whether they were compared.

        `turn` is as in Sender. Raises WrongAnswer.
        """
        return self._lines[line.name].check(turn, reply, now_s)


class _LineCheck:
    def __init__(self, line: Line, plan: CheckPlan, random: Random) -> None:
        self._line = line
        self._wire = WIRES[line.protocol]
        self._call = predict_call(line.protocol, line.spec, {}, line.signature.name)
        self._tolerance = plan.tolerance(line)
        self._version = plan.versions.get(line.name)
        self._golden = golden = GoldenAnswers(line.golden, self._tolerance)
        self._form = Form(line, golden.is_finite, golden.shape)
        self._random = random
        self._share = DEFAULT_SHARE if plan.share is None else plan.share
        self._longest_gap_s = _LONGEST_GAP_S if plan.share is None else math.inf
        self._right: dict[int, bytes] = {}  # the last right response to each request
        self._left = 1  # the first response is always compared
        self._due_s = math.inf
        # Errors are counted by message, so later errors of a kind repeat the numbers of the first.
        self._messages: dict[tuple[str, bool], str] = {}

    def check(self, turn: int, reply: Reply, now_s: float) -> bool:
        number = turn % len(self._line.exchanges)
        self._form.check(number, reply)
        if number >= len(self._golden):
            return False
        self._left -= 1
        if self._left and now_s < self._due_s:
            return False
        self._left, self._due_s = self._next_gap(), now_s + self._longest_gap_s
        return self._compare(number, reply)

    def _next_gap(self) -> int:
        if self._share >= 1:
            return 1
        # The geometric distribution selects each response with equal probability, independent of the others.
        return int(math.log(1 - self._random.random()) / math.log1p(-self._share)) + 1

    def _compare(self, number: int, reply: Reply) -> bool:
        if reply.body == self._right.get(number):
            return True
        golden = self._golden.outputs(number)
        try:
            prediction = self._read(reply, golden)
        except TpuserveError as error:  # for instance, JSON numbers that do not fit the dtype
            raise WrongAnswer(error.message, compared=True) from None
        # A label has moved, or the server has loaded a new version.
        if self._version is not None and prediction.version not in (None, self._version):
            return False
        difference = find_difference(prediction.outputs, golden, self._tolerance)
        if difference is not None:
            raise WrongAnswer(self._message(difference, prediction.outputs), compared=True)
        self._right[number] = reply.body
        return True

    def _read(self, reply: Reply, golden: Mapping[str, Array]) -> Prediction:
        # TensorFlow Serving's JSON responses contain no dtypes, and golden answers may have some outputs alone.
        specs = dict(self._line.signature.outputs) or {
            name: TensorSpec(name, array.dtype, None) for name, array in golden.items()
        }
        return self._wire.read_prediction(reply, self._call, Signature("", {}, specs))

    def _message(self, difference: Difference, outputs: Mapping[str, Array]) -> str:
        name = difference.output
        is_anothers = name in outputs and self._golden.has_elsewhere(name, outputs[name])
        whose = "; it matches the response of another request" if is_anothers else ""
        message = f"output {name!r} {difference.words}{whose}"
        return self._messages.setdefault((name, is_anothers), message)
