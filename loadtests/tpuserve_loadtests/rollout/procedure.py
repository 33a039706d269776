"""The procedure of a rollout: the order of gates and moves, and their reversal after a failure.

The caller supplies the measurements of gates, and the mover of labels or traffic.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tpuserve_loadtests.golden.difference import Parity
from tpuserve_loadtests.judgement.comparison import ComparisonOutcome
from tpuserve_loadtests.judgement.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_UNREACHABLE, first_of
from tpuserve_loadtests.judgement.run import RunOutcome
from tpuserve_loadtests.judgement.soak import SoakOutcome
from tpuserve_loadtests.requests.protocols import Protocol
from tpuserve_loadtests.rollout.evaluations import ComparedMetric
from tpuserve_loadtests.rollout.moves import LABELS, Move, Mover, NotMoved, ServerGone, Standing, Wording
from tpuserve_loadtests.rollout.replicas import ReplicaState
from tpuserve_loadtests.rollout.user_requests import Usage, UserTraffic

# Name of the entry for a signal, which is no step of the plan.
INTERRUPTED: Final = "interrupted"


class StepState(StrEnum):
    PLANNED = "planned"
    PASSED = "passed"
    FAILED = "failed"
    DONE = "done"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Step:
    """A step with its result. `start_s` counts from the start of the rollout."""

    name: str
    state: StepState
    detail: str
    start_s: float
    seconds: float


class Outcome(StrEnum):
    PLANNED = "planned"
    PROMOTED = "promoted"
    REFUSED = "refused"  # nothing was moved
    MOVED_BACK = "moved back"
    SERVER_GONE = "server gone"  # the file has the old labels, and the server does not respond
    STUCK = "stuck"  # the labels or the traffic could not be restored


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict of a gate. An `exit_code` of 0 means that it passed."""

    exit_code: int
    detail: str


class CannotJudge(Exception):
    """Error for a gate that ends without a verdict. The message states the reason."""

    def __init__(self, exit_code: int, reason: str) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class Gate:
    """A requirement for the rollout. `plan` describes its action. A `cheap` gate also runs in a dry run.

    `judge` may raise CannotJudge.
    """

    name: str
    plan: str
    judge: Callable[[], Judged]
    cheap: bool = False


@dataclass
class Rollout:
    """A rollout with its steps so far.

    `sequence` is the order of gates and moves. `on_step` receives each finished step. `clock` returns monotonic
    seconds.
    """

    sequence: Sequence[Gate | Move]
    mover: Mover
    interrupted: Callable[[], bool]
    on_step: Callable[[Step], None]
    clock: Callable[[], float]
    steps: list[Step] = field(default_factory=list, init=False)
    exit_code: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._began_s = self.clock()

    @property
    def planned(self) -> list[str]:
        return [each.name for each in self.sequence]

    def plan(self) -> Outcome:
        """Run the cheap gates, and list the remaining steps as planned."""
        for each in self.sequence:
            if isinstance(each, Move):
                self._step(each.name, StepState.PLANNED, each.words)
            elif not each.cheap:
                self._step(each.name, StepState.PLANNED, each.plan)
            elif not self._passes(each):
                return Outcome.REFUSED
        return Outcome.PLANNED

    def execute(self) -> Outcome:
        """Run the rollout. After the first move, any failure moves everything back."""
        moved: dict[str, int | None] = {}
        try:
            if all(
                self._moves(each, moved) if isinstance(each, Move) else self._passes(each) for each in self.sequence
            ):
                return Outcome.PROMOTED
        except BaseException:  # after any error, users must not keep an unverified version
            self._back(moved)
            raise
        return self._back(moved)

    def _moves(self, move: Move, moved: dict[str, int | None]) -> bool:
        if self._is_interrupted():
            return False
        if move.now == move.then:
            self._step(move.name, StepState.SKIPPED, f"already at {self.mover.wording.value(move.then)}")
            return True
        moved.setdefault(move.key, move.now)
        try:
            self.mover.move({move.key: move.then})
        except NotMoved as problem:
            self._step(move.name, StepState.FAILED, str(problem))
            if not self._is_interrupted():
                self.exit_code = EXIT_FAILED
            return False
        self._step(move.name, StepState.DONE, move.words)
        return True

    def _passes(self, gate: Gate) -> bool:
        if self._is_interrupted():
            return False
        try:
            judged = gate.judge()
        except CannotJudge as error:
            judged = Judged(error.exit_code, str(error))
        # Such as an unreachable server, which was reported. The moves still need a decision.
        except SystemExit as ended:
            judged = Judged(int(ended.code or EXIT_FAILED), f"the gate could not run (exit code {ended.code})")
        if judged.exit_code:
            self.exit_code = judged.exit_code
        self._step(gate.name, StepState.FAILED if judged.exit_code else StepState.PASSED, judged.detail)
        return not self._is_interrupted() and not judged.exit_code

    def _is_interrupted(self) -> bool:
        if self.interrupted():
            self._step(INTERRUPTED, StepState.FAILED, "by a signal")
            self.exit_code = first_of((self.exit_code, EXIT_INTERRUPTED))
            return True
        return False

    def _back(self, moved: Mapping[str, int | None]) -> Outcome:
        """Move back, all in one step, so that no error leaves a label at the new version."""
        if not moved:
            return Outcome.REFUSED
        try:
            self.mover.restore(moved)
        except NotMoved as problem:
            is_gone = isinstance(problem, ServerGone)
            self.exit_code = EXIT_UNREACHABLE if is_gone else EXIT_FAILED
            self._step(self.mover.wording.step_back, StepState.FAILED, str(problem))
            return Outcome.SERVER_GONE if is_gone else Outcome.STUCK
        self._step(self.mover.wording.step_back, StepState.DONE, self.mover.restored_words(moved))
        return Outcome.MOVED_BACK

    def _step(self, name: str, state: StepState, detail: str) -> None:
        start_s = sum(step.seconds for step in self.steps)
        step = Step(name, state, detail, start_s, self.clock() - self._began_s - start_s)
        self.steps.append(step)
        self.on_step(step)


@dataclass(slots=True)
class Findings:
    """The results of the gates, which fill them in; None for a gate that did not run or could not finish.

    `metrics` are those that both exports measured on labelled rows. `usage` lists the APIs that users call, or is None
    if they are unknown, and `loaded` the protocols of the shadow. `user_traffic` is that of users to the canary.
    """

    parity: Parity | None = None
    comparison: ComparisonOutcome | None = None
    canary: RunOutcome | None = None
    soak: SoakOutcome | None = None
    metrics: Sequence[ComparedMetric] = ()
    usage: Sequence[Usage] | None = None
    loaded: Sequence[Protocol] = ()
    user_traffic: UserTraffic | None = None


@dataclass(frozen=True, slots=True)
class RolloutOutcome:
    """The outcome of a rollout.

    `live` and `new` are versions. `before` maps labels to their versions before the rollout, or to None, and traffic to
    its percent. `started_at` is in Unix seconds. `dry_run` means that the rollout only made a plan. `standings` are the
    labels or the traffic at the end, and `replicas` the states of the servers.
    """

    model: str
    live: int
    new: int
    dry_run: bool
    outcome: Outcome
    exit_code: int
    steps: Sequence[Step]
    before: dict[str, int | None]
    standings: Sequence[Standing]
    findings: Findings
    started_at: float
    replicas: Sequence[ReplicaState] = ()
    wording: Wording = LABELS

    @property
    def statement(self) -> str:
        match self.outcome:
            case Outcome.PLANNED:
                return "Dry run: nothing was changed. Perform the rollout with --execute."
            case Outcome.PROMOTED:
                return f"{self.model}: version {self.new} is live."
            case Outcome.REFUSED:
                stays = f"{self.wording.unmoved}, version {self.live} is live"
                return f"{self.model}: version {self.new} was refused{self._cause}; {stays}."
            case Outcome.MOVED_BACK:
                return f"{self.model}: the {self.wording.back}{self._cause}, version {self.live} is live."
            case Outcome.SERVER_GONE:
                start = f"A server that starts with this file serves version {self.live}"
                return f"{self.model}: {self.missing.upper()}. {self.labels}. {start}."
            case Outcome.STUCK:
                problem = f"THE {self.wording.title.upper()} COULD NOT BE MOVED BACK. {self.labels}"
                return f"{self.model}: {problem}. {self.wording.advice}."

    @property
    def missing(self) -> str:
        """The number of servers that do not respond, in words. `labels` and the states have their addresses."""
        if len(self.replicas) < 2:
            return "the server does not respond"
        gone = sum(bool(state.problem) for state in self.replicas)
        return f"{gone} of {len(self.replicas)} replicas {'does' if gone == 1 else 'do'} not respond"

    @property
    def _cause(self) -> str:
        failed = [step.name for step in self.steps if step.state is StepState.FAILED]
        if not failed:
            return ""
        return ", because it was interrupted" if self.interrupted else f", because {failed[0]} failed"

    @property
    def interrupted(self) -> bool:
        return any(step.name == INTERRUPTED for step in self.steps)

    @property
    def labels(self) -> str:
        return "; ".join(map(str, self.standings))
