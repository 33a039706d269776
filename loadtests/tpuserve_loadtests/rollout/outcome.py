"""The outcome of a rollout: its steps, the findings of its gates, and the result."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpuserve_loadtests.judgement.comparison import ComparisonOutcome
from tpuserve_loadtests.judgement.soak import SoakOutcome
from tpuserve_loadtests.rollout.labels import Standing
from tpuserve_loadtests.rollout.parity import Parity
from tpuserve_loadtests.rollout.procedure import INTERRUPTED, Outcome, Step, StepState


@dataclass(slots=True)
class Findings:
    """The results of the gates, which fill them in; None for a gate that did not run or could not finish."""

    parity: Parity | None = None
    comparison: ComparisonOutcome | None = None
    soak: SoakOutcome | None = None


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
        """The result in words."""
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
        """The step that ended the rollout, as the end of a clause; empty if it is unknown."""
        failed = [step.name for step in self.steps if step.state is StepState.FAILED]
        if not failed:
            return ""
        return ", because it was interrupted" if self.interrupted else f", because {failed[0]} failed"

    @property
    def interrupted(self) -> bool:
        """Whether a signal interrupted the rollout."""
        return any(step.name == INTERRUPTED for step in self.steps)

    @property
    def labels(self) -> str:
        """The labels' final versions, in words."""
        return "; ".join(map(str, self.standings))
