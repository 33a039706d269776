"""Whether answers are right: some of them are read and compared with what the same requests got before the load."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tpuserve_client.dtypes import Array
from tpuserve_client.exchange import PredictCall, Reply
from tpuserve_client.grpc_wire import GrpcWire
from tpuserve_client.model import Signature, TensorSpec
from tpuserve_client.rest_wire import RestWire
from tpuserve_loadtests.golden.difference import Difference, find_difference
from tpuserve_loadtests.golden.golden_answers import GoldenAnswers
from tpuserve_loadtests.golden.tolerance import Tolerance
from tpuserve_loadtests.workload import Line

# Without golden answers one of so many is read, to see that it can be: to read all would cost more than to send them.
READ_EVERY: Final = 256


class WrongAnswer(Exception):
    """An answer that differs from its golden one."""


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """The checks of a run: `share` of the answers of lines with golden ones, drawn at random.

    `tolerances` are by name of the line. Without one, the limit follows from the dtype of the outputs.
    """

    share: float = 0.01
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)

    def tolerance(self, line: Line) -> Tolerance:
        """Return the tolerance of a line's answers."""
        return self.tolerances.get(line.name, Tolerance())


class AnswerChecks:
    """Of one process. Belongs to one thread."""

    def __init__(self, lines: Sequence[Line], plan: CheckPlan, seed: int) -> None:
        """`seed`: the same one draws the same answers, by their number in this process."""
        self._lines = {line.name: _LineCheck(line, plan.tolerance(line)) for line in lines}
        self._share = plan.share if any(line.golden for line in lines) else None
        self._random = random.Random(seed)
        self._left = 1  # the first answer is always looked at

    def is_due(self) -> bool:
        """Whether this answer is looked at; to be asked once for each. Cheap."""
        self._left -= 1
        if self._left:
            return False
        self._left = self._next_gap()
        return True

    def check(self, line: Line, turn: int, answer: bytes) -> None:
        """Raise WrongAnswer, or Internal if it cannot be read. `turn` is as Sender's."""
        self._lines[line.name].check(turn, answer)

    def _next_gap(self) -> int:
        if self._share is None:
            return READ_EVERY
        if self._share >= 1:
            return 1
        # Geometric: each answer is drawn with the same probability, whatever was drawn before.
        return int(math.log(1 - self._random.random()) / math.log1p(-self._share)) + 1


class _LineCheck:
    def __init__(self, line: Line, tolerance: Tolerance) -> None:
        self._line = line
        self._call = PredictCall(line.spec, {}, line.signature_name)
        self._tolerance = tolerance
        self._golden = GoldenAnswers(line.golden, tolerance)
        # Messages are counted: those of one kind are told with the numbers of the first.
        self._messages: dict[tuple[str, bool], str] = {}

    def check(self, turn: int, answer: bytes) -> None:
        if not self._golden:
            if self._line.protocol == "grpc":
                GrpcWire().read_prediction(Reply(answer), self._call, None)
            return
        number = turn % len(self._golden)
        if self._golden.is_verbatim(number, answer):
            return
        golden = self._golden.outputs(number)
        outputs = self._read(answer, golden)
        difference = find_difference(outputs, golden, self._tolerance)
        if difference is not None:
            raise WrongAnswer(self._message(difference, outputs))

    def _read(self, answer: bytes, golden: Mapping[str, Array]) -> Mapping[str, Array]:
        if self._line.protocol == "grpc":
            return GrpcWire().read_prediction(Reply(answer), self._call, None).outputs
        # JSON has no dtypes.
        specs = {name: TensorSpec(name, array.dtype, None) for name, array in golden.items()}
        return RestWire().read_prediction(Reply(answer), self._call, Signature("", {}, specs)).outputs

    def _message(self, difference: Difference, outputs: Mapping[str, Array]) -> str:
        name = difference.output
        is_anothers = name in outputs and self._golden.has_elsewhere(name, outputs[name])
        whose = "; it is another request's answer" if is_anothers else ""
        message = f"wrong answer: output {name!r} {difference.words}{whose}"
        return self._messages.setdefault((name, is_anothers), message)
