"""Golden answers of a line's requests, and checks of a share of the responses under load against them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

import numpy as np

from tpuserve_client.dtypes import Array
from tpuserve_client.errors import TpuserveError
from tpuserve_client.exchange import Reply
from tpuserve_client.model import Prediction, Signature, TensorSpec
from tpuserve_loadtests.golden.difference import Difference, find_difference, is_inexact, wide_dtype
from tpuserve_loadtests.golden.form import Form, WrongAnswer
from tpuserve_loadtests.golden.tolerance import Tolerance
from tpuserve_loadtests.measurement.recorder import Delivery
from tpuserve_loadtests.requests.wires import WIRES, decode_golden, predict_call
from tpuserve_loadtests.requests.workload import Line

# The search for the request of a wrong response keeps golden answers as float64: 32 MiB at most.
_MOST_ELEMENTS: Final = 4 * 2**20


class GoldenAnswers:
    """Golden answers by number of the request, as in Line.golden. Belongs to one thread."""

    def __init__(self, encoded: Sequence[bytes], tolerance: Tolerance) -> None:
        self._encoded = tuple(encoded)
        self.numbers = [number for number, message in enumerate(encoded) if message]  # the requests with an answer
        self._tolerance = tolerance
        self._decoded: dict[int, Mapping[str, Array]] = {}
        self._stacks: dict[str, Array | None] = {}

    def __contains__(self, number: int) -> bool:
        return number < len(self._encoded) and bool(self._encoded[number])

    def limits(self) -> list[str]:
        """Return the permitted differences of the outputs as texts."""
        first = self.outputs(self.numbers[0]) if self.numbers else {}
        return [str(self._tolerance.of(array.dtype)) for array in first.values() if is_inexact(array)]

    def outputs(self, number: int) -> Mapping[str, Array]:
        found = self._decoded.get(number)
        if found is None:
            found = self._decoded[number] = decode_golden(self._encoded[number])
        return found

    def is_finite(self, name: str) -> bool:
        """Return whether golden answers have the output, and all its values are finite."""
        found = [outputs[name] for number in self.numbers if name in (outputs := self.outputs(number))]
        return bool(found) and all(np.isfinite(array).all() for array in found)

    def shape(self, number: int, name: str) -> tuple[int, ...] | None:
        """Return the shape of an output in the golden answer to a request, or None if it is unknown."""
        found = self.outputs(number).get(name) if number in self else None
        return None if found is None else found.shape

    def are_alike(self) -> bool:
        """Return whether all requests have the same golden answer, so that checks cannot detect a mix-up."""
        first, *others = map(self.outputs, self.numbers)
        return all(find_difference(other, first, self._tolerance) is None for other in others)

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
        arrays = [self.outputs(number)[name] for number in self.numbers]
        if len({array.shape for array in arrays}) > 1 or len(arrays) * arrays[0].size > _MOST_ELEMENTS:
            return None
        stack: Array = np.stack(arrays)
        if stack.dtype == object:
            return stack
        return stack.astype(wide_dtype(stack))


# Share of the responses to compare by default, and seconds after which a line's next response is compared anyway.
DEFAULT_SHARE: Final = 0.01
_LONGEST_GAP_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """The comparisons of a run: a random `share` of the responses to requests with golden answers.

    Without a `share`, it is DEFAULT_SHARE, and each line of the table has about 20 comparisons a second, or all at
    lower rates. `tolerances` are by line name. For a line without a tolerance, the limit follows from the dtype of the
    outputs. `versions` are the versions whose answers this run recorded, by line name. Answers of others are not
    compared.
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
            found |= dict.fromkeys(GoldenAnswers(line.golden, self.tolerance(line)).limits())
        return found


class AnswerChecks:
    """The response checks of one process. Belongs to one thread."""

    def __init__(self, lines: Sequence[Line], plan: CheckPlan, seed: int) -> None:
        """Set up the checks. With a share, equal seeds select equal response numbers of a line in this process."""
        self._lines = {line.name: _LineCheck(line, plan, Random(f"{seed} {line.name}")) for line in lines}

    def check(self, line: Line, turn: int, reply: Reply, now_s: float, delivery: Delivery) -> None:
        """Check the form of a response, and compare the values of a share.

        `turn` is as in Sender. Notes in `delivery` what was checked. Raises WrongAnswer.
        """
        self._lines[line.name].check(turn, reply, now_s, delivery)


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
        # Each line of the table has its own comparisons, so that a frequent one does not use up those of a rare one.
        self._names = line.counted_as()
        # Responses until the next comparison, and the time when it is due anyway. The first one is always compared.
        self._next = dict.fromkeys(self._names, (1, math.inf))
        # Errors are counted by message, so later errors of a kind repeat the numbers of the first.
        self._messages: dict[tuple[str, bool], str] = {}

    def check(self, turn: int, reply: Reply, now_s: float, delivery: Delivery) -> None:
        number = turn % len(self._line.exchanges)
        is_whole = self._form.check(number, reply)
        if number in self._golden:
            name = self._names[number % len(self._names)]
            left, due_s = self._next[name]
            self._next[name] = left - 1, due_s
            if left <= 1 or now_s >= due_s:
                self._next[name] = self._next_gap(), now_s + self._longest_gap_s
                self._compare(number, reply, delivery)
        delivery.unparsed = not (is_whole or delivery.compared)

    def _next_gap(self) -> int:
        if self._share >= 1:
            return 1
        # The geometric distribution selects each response with equal probability, independent of the others.
        return int(math.log(1 - self._random.random()) / math.log1p(-self._share)) + 1

    def _compare(self, number: int, reply: Reply, delivery: Delivery) -> None:
        delivery.compared = True
        if reply.body == self._right.get(number):
            return
        golden = self._golden.outputs(number)
        try:
            prediction = self._read(reply, golden)
        except TpuserveError as error:  # for instance, JSON numbers that do not fit the dtype
            raise WrongAnswer(error.message) from None
        self._form.check_version(prediction.version)
        # A label has moved, or the server has loaded a new version.
        if self._version is not None and prediction.version not in (None, self._version):
            delivery.compared = False
            return
        difference = find_difference(prediction.outputs, golden, self._tolerance)
        if difference is not None:
            raise WrongAnswer(self._message(difference, prediction.outputs))
        self._right[number] = reply.body

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
        return self._messages.setdefault((name, is_anothers), f"{difference}{whose}")
