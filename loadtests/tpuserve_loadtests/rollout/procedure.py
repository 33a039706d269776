"""A rollout from gate to gate: what is done in which order, and what is taken back where it fails.

What a gate measures and how a label moves comes in from outside.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from tpuserve_loadtests.exit_codes import EXIT_FAILED
from tpuserve_loadtests.rollout.labels import NotMoved

# The name of a step that is none.
INTERRUPTED: Final = "interrupted"


class StepState(StrEnum):
    """What became of a step."""

    PLANNED = "planned"
    PASSED = "passed"
    FAILED = "failed"
    DONE = "done"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Step:
    """A step for people: what it is, what came of it, and when: seconds after the rollout began, and how many."""

    name: str
    state: StepState
    detail: str
    start_s: float
    seconds: float


class Outcome(StrEnum):
    """What the whole came to."""

    PLANNED = "planned"
    PROMOTED = "promoted"
    REFUSED = "refused"  # the labels were not touched
    MOVED_BACK = "moved back"
    STUCK = "stuck"  # the labels are not where they should be


@dataclass(frozen=True, slots=True)
class Judged:
    """What a gate says. `exit_code` is 0 for one that is passed."""

    exit_code: int
    detail: str


@dataclass(frozen=True, slots=True)
class Gate:
    """Something to be passed. `plan` says what it will do. `cheap`: it may be asked without being told to execute."""

    name: str
    plan: str
    judge: Callable[[], Judged]
    cheap: bool = False


class Mover(Protocol):
    """Moves labels of one model. `move` raises NotMoved, and then has left them as they were, as far as it could."""

    def move(self, changes: Mapping[str, int | None]) -> None: ...


@dataclass
class Rollout:
    """`moves`: a label, its version now (None for none) and then, in this order. `tell` is told of each step.

    `clock`: seconds that never go back.
    """

    gates: Sequence[Gate]
    moves: Sequence[tuple[str, int | None, int]]
    soak: Gate | None
    labels: Mover
    interrupted: Callable[[], bool]
    tell: Callable[[Step], None]
    clock: Callable[[], float]
    steps: list[Step] = field(default_factory=list)
    exit_code: int = 0

    def __post_init__(self) -> None:
        self._began_s = self.clock()

    @property
    def planned(self) -> list[str]:
        """Names of its steps, if all goes well."""
        soak = [self.soak.name] if self.soak is not None else []
        return [*(gate.name for gate in self.gates), *map(_name, self.moves), *soak]

    def plan(self) -> Outcome:
        """Pass the cheap gates and say what else would be done."""
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
        """Do it. After the first move, whatever goes wrong moves all labels back."""
        for gate in self.gates:
            if not self._passes(gate):
                return Outcome.REFUSED
        moved: dict[str, int | None] = {}
        for move in self.moves:
            label, now, then = move
            if self._is_interrupted():
                return self._back(moved)
            if now == then:
                self._step(_name(move), StepState.SKIPPED, f"it stands for version {then} already")
                continue
            try:
                self.labels.move({label: then})
            except NotMoved as problem:
                self._step(_name(move), StepState.FAILED, str(problem))
                self.exit_code = EXIT_FAILED
                return self._back({**moved, label: now})
            moved[label] = now
            self._step(_name(move), StepState.DONE, _words(move))
        try:
            if self.soak is None or self._passes(self.soak):
                return Outcome.PROMOTED
        except BaseException:  # whatever it is, users must not be left with a version that nobody vouches for
            self._back(moved)
            raise
        return self._back(moved)

    def _passes(self, gate: Gate) -> bool:
        if self._is_interrupted():
            return False
        try:
            judged = gate.judge()
        except SystemExit as ended:  # as where the server is gone: why was told, and the labels must be seen to
            judged = Judged(int(ended.code or EXIT_FAILED), f"it could not be asked (exit code {ended.code})")
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
        """Labels to where they were, the last one that was moved first."""
        if not moved:
            return Outcome.REFUSED
        stuck = False
        for label, version in reversed(list(moved.items())):
            target = "is taken away" if version is None else f"to version {version}"
            try:
                self.labels.move({label: version})
                self._step(f"{label} back", StepState.DONE, target)
            except NotMoved as problem:
                self._step(f"{label} back", StepState.FAILED, str(problem))
                stuck = True
        if stuck:
            self.exit_code = EXIT_FAILED
            return Outcome.STUCK
        return Outcome.MOVED_BACK

    def _step(self, name: str, state: StepState, detail: str) -> None:
        """One begins where the last one ended."""
        start_s = sum(step.seconds for step in self.steps)
        step = Step(name, state, detail, start_s, self.clock() - self._began_s - start_s)
        self.steps.append(step)
        self.tell(step)


def _name(move: tuple[str, int | None, int]) -> str:
    return f"label {move[0]}"


def _words(move: tuple[str, int | None, int]) -> str:
    _, now, then = move
    return f"to version {then}" if now is None else f"from version {now} to {then}"
