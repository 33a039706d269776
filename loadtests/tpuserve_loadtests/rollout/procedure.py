"""The procedure of a rollout: the order of gates and moves, and their reversal after a failure.

The caller supplies the measurements of gates and the moves of labels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from tpuserve_loadtests.judgement.comparison import ComparisonOutcome
from tpuserve_loadtests.judgement.exit_codes import EXIT_FAILED, EXIT_UNREACHABLE
from tpuserve_loadtests.judgement.soak import SoakOutcome
from tpuserve_loadtests.rollout.evaluations import ComparedMetric
from tpuserve_loadtests.rollout.labels import NotMoved, ServerGone, Standing
from tpuserve_loadtests.rollout.parity import Parity

# Names of the entries for a signal and for the labels' return, which are not steps of the plan.
INTERRUPTED: Final = "interrupted"
LABELS_BACK: Final = "labels back"


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
    REFUSED = "refused"  # the labels did not change
    MOVED_BACK = "moved back"
    SERVER_GONE = "server gone"  # the file has the old labels, and the server does not respond
    STUCK = "stuck"  # the labels could not be restored


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict of a gate. An `exit_code` of 0 means that it passed."""

    exit_code: int
    detail: str


@dataclass(frozen=True, slots=True)
class Gate:
    """A requirement for the rollout. `plan` describes its action. A `cheap` gate also runs in a dry run."""

    name: str
    plan: str
    judge: Callable[[], Judged]
    cheap: bool = False


class Mover(Protocol):
    """Mover of one model's labels.

    If `move` raises NotMoved, it has restored the labels as far as possible. `restore` sets the versions of several
    labels in one step, first in the file. It raises ServerGone if only the file has them, and NotMoved otherwise.
    """

    def move(self, changes: Mapping[str, int | None]) -> None: ...

    def restore(self, labels: Mapping[str, int | None]) -> None: ...


@dataclass
class Rollout:
    """A rollout with its steps so far.

    Each of `moves` is a label, its current version (or None) and its new version, in order of execution. `on_step`
    receives each finished step. `clock` returns monotonic seconds.
    """

    gates: Sequence[Gate]
    moves: Sequence[tuple[str, int | None, int]]
    soak: Gate | None
    labels: Mover
    interrupted: Callable[[], bool]
    on_step: Callable[[Step], None]
    clock: Callable[[], float]
    steps: list[Step] = field(default_factory=list, init=False)
    exit_code: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._began_s = self.clock()

    @property
    def planned(self) -> list[str]:
        soak = [self.soak.name] if self.soak is not None else []
        return [*(gate.name for gate in self.gates), *map(_name, self.moves), *soak]

    def plan(self) -> Outcome:
        """Run the cheap gates, and list the remaining steps as planned."""
        for gate in self.gates:
            if gate.cheap and not self._passes(gate):
                return Outcome.REFUSED
            if not gate.cheap:
                self._step(gate.name, StepState.PLANNED, gate.plan)
        for move in self.moves:
            self._step(_name(move), StepState.PLANNED, _words(move))
        if self.soak is not None:
            self._step(self.soak.name, StepState.PLANNED, self.soak.plan)
        return Outcome.PLANNED

    def execute(self) -> Outcome:
        """Run the rollout. After the first move, any failure moves all labels back."""
        for gate in self.gates:
            if not self._passes(gate):
                return Outcome.REFUSED
        moved: dict[str, int | None] = {}
        try:
            if self._moves(moved) and (self.soak is None or self._passes(self.soak)):
                return Outcome.PROMOTED
        except BaseException:  # after any error, users must not keep an unverified version
            self._back(moved)
            raise
        return self._back(moved)

    def _moves(self, moved: dict[str, int | None]) -> bool:
        for move in self.moves:
            label, now, then = move
            if self._is_interrupted():
                return False
            if now == then:
                self._step(_name(move), StepState.SKIPPED, f"already at version {then}")
                continue
            moved[label] = now
            try:
                self.labels.move({label: then})
            except NotMoved as problem:
                self._step(_name(move), StepState.FAILED, str(problem))
                self.exit_code = EXIT_FAILED
                return False
            self._step(_name(move), StepState.DONE, _words(move))
        return True

    def _passes(self, gate: Gate) -> bool:
        if self._is_interrupted():
            return False
        try:
            judged = gate.judge()
        except (
            SystemExit
        ) as ended:  # such as an unreachable server, which was reported; the labels still need a decision
            judged = Judged(int(ended.code or EXIT_FAILED), f"the gate could not run (exit code {ended.code})")
        if judged.exit_code:
            self.exit_code = judged.exit_code
        self._step(gate.name, StepState.FAILED if judged.exit_code else StepState.PASSED, judged.detail)
        return not self._is_interrupted() and not judged.exit_code

    def _is_interrupted(self) -> bool:
        if self.interrupted():
            self._step(INTERRUPTED, StepState.FAILED, "by a signal")
            self.exit_code = EXIT_FAILED
            return True
        return False

    def _back(self, moved: Mapping[str, int | None]) -> Outcome:
        """Move the labels back, all in one step, so that no error leaves one of them at the new version."""
        if not moved:
            return Outcome.REFUSED
        try:
            self.labels.restore(moved)
        except NotMoved as problem:
            is_gone = isinstance(problem, ServerGone)
            self.exit_code = EXIT_UNREACHABLE if is_gone else EXIT_FAILED
            self._step(LABELS_BACK, StepState.FAILED, str(problem))
            return Outcome.SERVER_GONE if is_gone else Outcome.STUCK
        back = [f"{label} removed" if at is None else f"{label} to version {at}" for label, at in moved.items()]
        self._step(LABELS_BACK, StepState.DONE, "; ".join(back))
        return Outcome.MOVED_BACK

    def _step(self, name: str, state: StepState, detail: str) -> None:
        start_s = sum(step.seconds for step in self.steps)
        step = Step(name, state, detail, start_s, self.clock() - self._began_s - start_s)
        self.steps.append(step)
        self.on_step(step)


def _name(move: tuple[str, int | None, int]) -> str:
    return f"label {move[0]}"


def _words(move: tuple[str, int | None, int]) -> str:
    _, now, then = move
    return f"to version {then}" if now is None else f"from version {now} to {then}"


@dataclass(slots=True)
class Findings:
    """The results of the gates, which fill them in; None for a gate that did not run or could not finish.

    `metrics` are those that both exports measured on labelled rows.
    """

    parity: Parity | None = None
    comparison: ComparisonOutcome | None = None
    soak: SoakOutcome | None = None
    metrics: Sequence[ComparedMetric] = ()


@dataclass(frozen=True, slots=True)
class RolloutOutcome:
    """The outcome of a rollout.

    `live` and `new` are versions. `before` maps labels to their versions before the rollout, or to None. `started_at`
    is in Unix seconds. `dry_run` means that the rollout only made a plan. `standings` are the labels at the end.
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

    @property
    def statement(self) -> str:
        match self.outcome:
            case Outcome.PLANNED:
                return "Dry run: nothing was changed. Perform the rollout with --execute."
            case Outcome.PROMOTED:
                return f"{self.model}: version {self.new} is live."
            case Outcome.REFUSED:
                stays = f"no label was moved, version {self.live} is live"
                return f"{self.model}: version {self.new} was refused{self._cause}; {stays}."
            case Outcome.MOVED_BACK:
                return f"{self.model}: the labels were moved back{self._cause}, version {self.live} is live."
            case Outcome.SERVER_GONE:
                problem = f"THE SERVER DOES NOT RESPOND. {self.labels}. A server that starts with this file serves"
                return f"{self.model}: {problem} version {self.live}."
            case Outcome.STUCK:
                problem = f"THE LABELS COULD NOT BE MOVED BACK. {self.labels}. Set them in the file and reload it."
                return f"{self.model}: {problem}"

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
