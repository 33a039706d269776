"""The outcome of a sweep: its steps and their knee."""

from collections.abc import Sequence
from dataclasses import dataclass

from tpuserve_loadtests.judgement.knee import LEAST_LOADS, find_knee
from tpuserve_loadtests.judgement.run import RunOutcome
from tpuserve_loadtests.monitoring.server_columns import changes
from tpuserve_loadtests.rendering.units import milliseconds, per_second


@dataclass(frozen=True, slots=True)
class Sweep:
    """At least one step, in the order of execution. `knee` is the load beyond which latency outgrows throughput.

    It is None if the sweep does not reach it, or has too few steps that describe the server.
    """

    steps: Sequence[RunOutcome]
    knee: RunOutcome | None

    @property
    def exit_code(self) -> int:
        """The highest exit code of the steps."""
        return max(step.exit_code for step in self.steps)

    @property
    def best(self) -> RunOutcome:
        """The step with the highest throughput."""
        return max(self.steps, key=lambda step: step.total.rate_per_s)

    @property
    def knee_words(self) -> str:
        """The knee in words, or the reason why it is unknown."""
        if self.knee is not None:
            figures = f"{per_second(self.knee.total.rate_per_s)}, p99 {milliseconds(self.knee.total.p99_ms)}"
            return f"the knee is at {_load(self.knee)} ({figures}), beyond which latency grows faster than throughput"
        usable = _usable(self.steps)
        if len(usable) < LEAST_LOADS:
            return f"a knee needs at least {LEAST_LOADS} loads that succeed, and there are {len(usable)}"
        return f"the knee is beyond {_load(usable[-1])}: throughput still grows faster than latency"

    @property
    def beyond_knee(self) -> str:
        """The change of the server's metrics from the knee to the highest load, or an empty string."""
        if self.knee is None:
            return ""
        last = _usable(self.steps)[-1]
        changed = changes(self.knee.watched, last.watched)
        return f"{_load(last)} compared with {_load(self.knee)}: {changed}" if changed else ""


def judge_sweep(steps: Sequence[RunOutcome]) -> Sweep:
    """Find the knee of at least one step."""
    usable = _usable(steps)
    means_us = [step.measured.total.histogram.mean_us() or 0.0 for step in usable]
    knee = find_knee([(step.total.rate_per_s, mean_us) for step, mean_us in zip(usable, means_us, strict=True)])
    return Sweep(steps, None if knee is None else usable[knee])


def _usable(steps: Sequence[RunOutcome]) -> list[RunOutcome]:
    """Return the steps whose figures describe the server, from the lowest load to the highest."""
    usable = [step for step in steps if step.generator.trusted and step.all_completed and step.total.rate_per_s > 0]
    return sorted(usable, key=lambda step: step.measured.load.users or step.measured.load.offered_per_s or 0.0)


def _load(step: RunOutcome) -> str:
    return str(step.measured.load)
