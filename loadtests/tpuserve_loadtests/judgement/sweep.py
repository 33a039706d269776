"""The outcome of a sweep: its steps and their knee, beyond which latency grows faster than throughput."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tpuserve_loadtests.judgement.exit_codes import first_of
from tpuserve_loadtests.judgement.run import RunOutcome
from tpuserve_loadtests.monitoring.watched import changes
from tpuserve_loadtests.rendering.scales import milliseconds, per_second

# With fewer loads, the highest power can be at a load that only happens to be between the others.
LEAST_LOADS: Final = 3


def find_knee(loads: Sequence[tuple[float, float]]) -> int | None:
    """Return the index of the knee among loads, each with its throughput and its mean latency, both above 0.

    The knee is the load with the highest power, which is throughput divided by mean latency (Kleinrock, "Power and
    deterministic rules of thumb for probabilistic problems in computer communications", 1979). Beyond the highest
    power, latency grows by a larger factor than throughput. The order of the loads is from the lowest to the highest.

    Returns None for fewer than LEAST_LOADS loads, and if the last load has the highest power: the knee is beyond it.
    """
    if len(loads) < LEAST_LOADS:
        return None
    powers = [throughput / latency for throughput, latency in loads]
    knee = powers.index(max(powers))
    return None if knee == len(loads) - 1 else knee


@dataclass(frozen=True, slots=True)
class Sweep:
    """At least one step, in the order of execution. `knee` is the load beyond which latency outgrows throughput.

    It is None if the sweep does not reach it, or has too few steps that describe the server.
    """

    steps: Sequence[RunOutcome]
    knee: RunOutcome | None

    @property
    def exit_code(self) -> int:
        return first_of(step.exit_code for step in self.steps)

    @property
    def best(self) -> RunOutcome:
        return max(self.steps, key=lambda step: step.total.rate_per_s)

    @property
    def knee_words(self) -> str:
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
    usable = _usable(steps)
    means_us = [step.measured.total.histogram.mean_us() or 0.0 for step in usable]
    knee = find_knee([(step.total.rate_per_s, mean_us) for step, mean_us in zip(usable, means_us, strict=True)])
    return Sweep(steps, None if knee is None else usable[knee])


def _usable(steps: Sequence[RunOutcome]) -> list[RunOutcome]:
    usable = [step for step in steps if step.generator.trusted and step.all_completed and step.total.rate_per_s > 0]
    return sorted(usable, key=lambda step: step.measured.load.users or step.measured.load.offered_per_s or 0.0)


def _load(step: RunOutcome) -> str:
    return str(step.measured.load)
