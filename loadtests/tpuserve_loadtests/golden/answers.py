"""Golden answers of a line's requests, and checks of a share of the responses under load against them."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tpuserve_client.dtypes import Array, describe
from tpuserve_client.errors import TpuserveError
from tpuserve_client.exchange import PredictCall, Reply
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import ModelSpec, Signature, TensorSpec
from tpuserve_loadtests.golden.tolerance import Allowed, Tolerance
from tpuserve_loadtests.requests.protocols import Protocol
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


def _gaps(got: Array, want: Array) -> Array:
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

    def is_verbatim(self, number: int, answer: bytes) -> bool:
        """Return whether a gRPC response equals the golden answer byte for byte."""
        return answer == self._encoded[number]

    def outputs(self, number: int) -> Mapping[str, Array]:
        found = self._decoded.get(number)
        if found is None:
            found = self._decoded[number] = (
                GrpcWire()
                .read_prediction(Reply(self._encoded[number]), PredictCall(ModelSpec("golden"), {}), None)
                .outputs
            )
        return found

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
        wide: Array = stack.astype(np.complex128 if stack.dtype.kind == "c" else np.float64)
        return wide


# Without golden answers, the checks decode one response in this many. Decoding all costs more than sending the
# requests.
READ_EVERY: Final = 256
# Protocols whose responses the checks decode only to compare them, because each number becomes a Python object.
_JSON: Final[tuple[Protocol, ...]] = ("rest", "oip_json")


class WrongAnswer(Exception):
    """Error for a response that differs from its golden answer."""


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """The checks of a run: a random `share` of the responses of lines with golden answers.

    `tolerances` are by line name. For a line without a tolerance, the limit follows from the dtype of the outputs.
    """

    share: float = 0.01
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)

    def tolerance(self, line: Line) -> Tolerance:
        return self.tolerances.get(line.name, Tolerance())


class AnswerChecks:
    """The response checks of one process. Belongs to one thread."""

    def __init__(self, lines: Sequence[Line], plan: CheckPlan, seed: int) -> None:
        """Set up the checks. Equal seeds select equal response numbers in this process."""
        self._lines = {line.name: _LineCheck(line, plan.tolerance(line)) for line in lines}
        self._share = plan.share if any(line.golden for line in lines) else None
        self._random = random.Random(seed)
        self._left = 1  # the first response is always checked

    def is_due(self) -> bool:
        """Return whether to check this response. Call it once for each response. Cheap."""
        self._left -= 1
        if self._left:
            return False
        self._left = self._next_gap()
        return True

    def check(self, line: Line, turn: int, reply: Reply) -> None:
        """Check a response. `turn` is as in Sender.

        Raises:
            WrongAnswer: the response differs from the golden answer, or cannot be decoded to compare them.
            Internal: the response cannot be decoded, and the line has no golden answers.
        """
        self._lines[line.name].check(turn, reply)

    def _next_gap(self) -> int:
        if self._share is None:
            return READ_EVERY
        if self._share >= 1:
            return 1
        # The geometric distribution selects each response with equal probability, independent of the others.
        return int(math.log(1 - self._random.random()) / math.log1p(-self._share)) + 1


class _LineCheck:
    def __init__(self, line: Line, tolerance: Tolerance) -> None:
        self._line = line
        self._wire = WIRES[line.protocol]
        self._call = predict_call(line.protocol, line.spec, {}, line.signature_name)
        self._tolerance = tolerance
        self._golden = GoldenAnswers(line.golden, tolerance)
        # Errors are counted by message, so later errors of a kind repeat the numbers of the first.
        self._messages: dict[tuple[str, bool], str] = {}

    def check(self, turn: int, reply: Reply) -> None:
        if not self._golden:
            if self._line.protocol not in _JSON:
                self._wire.read_prediction(reply, self._call, None)
            return
        number = turn % len(self._golden)
        if self._golden.is_verbatim(number, reply.body):
            return
        golden = self._golden.outputs(number)
        try:
            outputs = self._read(reply, golden)
        except TpuserveError as error:  # for instance, JSON without one of the outputs
            raise WrongAnswer(f"wrong response: {error.message}") from None
        difference = find_difference(outputs, golden, self._tolerance)
        if difference is not None:
            raise WrongAnswer(self._message(difference, outputs))

    def _read(self, reply: Reply, golden: Mapping[str, Array]) -> Mapping[str, Array]:
        # TensorFlow Serving's JSON responses contain no dtypes.
        specs = {name: TensorSpec(name, array.dtype, None) for name, array in golden.items()}
        return self._wire.read_prediction(reply, self._call, Signature("", {}, specs)).outputs

    def _message(self, difference: Difference, outputs: Mapping[str, Array]) -> str:
        name = difference.output
        is_anothers = name in outputs and self._golden.has_elsewhere(name, outputs[name])
        whose = "; it matches the response of another request" if is_anothers else ""
        message = f"wrong response: output {name!r} {difference.words}{whose}"
        return self._messages.setdefault((name, is_anothers), message)
