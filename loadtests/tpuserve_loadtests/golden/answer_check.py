"""Checks of responses under load. They compare a share of the responses with golden answers from before the load."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tpuserve_client.dtypes import Array
from tpuserve_client.errors import TpuserveError
from tpuserve_client.exchange import Reply
from tpuserve_client.model import Signature, TensorSpec
from tpuserve_loadtests.golden.difference import Difference, find_difference
from tpuserve_loadtests.golden.golden_answers import GoldenAnswers
from tpuserve_loadtests.golden.tolerance import Tolerance
from tpuserve_loadtests.requests.protocols import Protocol
from tpuserve_loadtests.requests.wires import WIRES, predict_call
from tpuserve_loadtests.requests.workload import Line

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
        """Return the tolerance for a line's responses."""
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
