"""The outcome of a run that was repeated until the interval of a figure's median settled, with gates over all runs."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from tpuserve_formats.counted import counted
from tpuserve_loadtests.judgement.exit_codes import exit_code
from tpuserve_loadtests.judgement.run import RunOutcome
from tpuserve_loadtests.judgement.spending import Spending
from tpuserve_loadtests.judgement.threshold import GateResult, Threshold
from tpuserve_loadtests.measurement.measured import Measured, together
from tpuserve_loadtests.measurement.recorder import Summary, Tally
from tpuserve_loadtests.monitoring.watched import Watched
from tpuserve_loadtests.rendering.report import Case
from tpuserve_loadtests.statistics.early_stopping import late_allowed
from tpuserve_loadtests.statistics.median_interval import CONFIDENCE, MedianInterval, median_interval, values_needed

# Latencies in milliseconds, and successful responses per second.
_VALUES: Final[dict[str, Callable[[Measured], float | None]]] = {
    "p50": lambda measured: measured.total.percentile_ms(50),
    "p90": lambda measured: measured.total.percentile_ms(90),
    "p99": lambda measured: measured.total.percentile_ms(99),
    "rate": lambda measured: measured.rate_per_s,
}
FIGURES: Final = tuple(_VALUES)


@dataclass(frozen=True, slots=True)
class Settling:
    """The figure that settles, and the largest distance of its interval from its median; 0.05 is 5 %."""

    figure: str
    within: float

    def is_settled(self, runs: Sequence[Measured]) -> bool:
        interval = interval_of(self.figure, runs)
        return interval is not None and interval.distance <= self.within


def value_of(figure: str, measured: Measured) -> float | None:
    """Return a figure of a run, or None if the server answered no request."""
    return _VALUES[figure](measured)


def interval_of(figure: str, runs: Sequence[Measured]) -> MedianInterval | None:
    """Return the median and interval of a figure. Return None for too few runs, or if a run has no value."""
    values = [value for measured in runs if (value := value_of(figure, measured)) is not None]
    return median_interval(values) if len(values) == len(runs) else None


def gates_over(gates: Sequence[Threshold], runs: Sequence[RunOutcome]) -> tuple[GateResult, ...]:
    """Judge gates on repeated runs. A gate fails if it is true of its figure, or if a run has no figure for it.

    The figure of a percentile, `mean` or `rate` is the median of the runs, which a single bad run does not move. The
    other figures are those of all requests together, so that no failure is lost.
    """
    measured = [run.measured for run in runs]
    of_gates = zip(gates, *(run.gates for run in runs), strict=True)
    total = together(measured).total
    return tuple(
        GateResult.of(gate, _figure_over(gate, [each.figure for each in results], measured), _shortfall(gate, total))
        for gate, *results in of_gates
    )


def _shortfall(gate: Threshold, total: Tally) -> str:
    """Return the shortfall of the number of requests, because a bad run does not move the median."""
    is_enough = gate.percentile and late_allowed(total.requests, gate.percentile) is not None
    return "" if is_enough else gate.shortfall(total)


def _figure_over(gate: Threshold, found: Sequence[float | None], runs: Sequence[Measured]) -> float | None:
    values = [value for value in found if value is not None]
    if not values or len(values) < len(found):
        return None
    match gate.metric:
        case "max":
            return max(values)
        case "wrong":
            return sum(values)
        case "error_rate":
            return _weighted(values, [measured.total.requests for measured in runs])
        case "wrong_rate":
            return _weighted(values, [measured.total.checked for measured in runs])
    return statistics.median(values)


def _weighted(values: Sequence[float], weights: Sequence[int]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


MEDIAN = "median"


@dataclass(frozen=True, slots=True)
class RepetitionOutcome:
    """Repeated runs of the same load, at least one, with gates over all of them.

    `most` is the limit of runs. `extra_notes` holds notes on all runs.
    """

    runs: tuple[RunOutcome, ...]
    gates: tuple[GateResult, ...]
    settling: Settling
    most: int
    extra_notes: tuple[str, ...] = ()

    @property
    def measured(self) -> list[Measured]:
        return [run.measured for run in self.runs]

    @property
    def watched(self) -> Watched:
        return Watched.together([run.watched for run in self.runs])

    @property
    def median(self) -> Summary:
        """The medians of the runs' figures, as a line of the table. A count can be a fraction."""
        lines = [run.total for run in self.runs]
        names = [each.name for each in fields(Summary) if each.name != "name"]
        medians: dict[str, Any] = {name: _median([getattr(line, name) for line in lines]) for name in names}
        return Summary(name=MEDIAN, **medians)

    @property
    def spending(self) -> Spending:
        first = self.runs[0]
        return Spending(self.median.rate_per_s, first.rows, first.price, self.watched.energy)

    @property
    def intervals(self) -> dict[str, MedianInterval | None]:
        """The median and interval of each figure, or None after too few runs."""
        return {figure: interval_of(figure, self.measured) for figure in FIGURES}

    @property
    def is_settled(self) -> bool:
        return self.settling.is_settled(self.measured)

    @property
    def statement(self) -> str:
        name, wanted, count = self.settling.figure, f"{100 * self.settling.within:g} %", len(self.runs)
        interval = self.intervals[name]
        if interval is None:
            return f"{name} has no interval after {count} of at least {counted(values_needed(), 'run')}"
        if self.is_settled:
            return f"{name} settled within {wanted} after {counted(count, 'run')}"
        reached = f"its interval reaches {100 * interval.distance:.3g} % from the median, more than {wanted}"
        return f"{name} did not settle in {counted(count, 'run')}: {reached}"

    @property
    def is_generator_limit(self) -> bool:
        return any(run.generator.fails(strict=run.strict) for run in self.runs)

    @property
    def exit_code(self) -> int:
        return exit_code(
            generator=self.is_generator_limit,
            gate=any(result.failed for result in self.gates),
            failed=not all(run.all_completed and run.all_correct for run in self.runs),
            interrupted=bool(self.interruption),
            evidence=not self.is_settled or any(result.shortfall for result in self.gates),
        )

    @property
    def interruption(self) -> str:
        """The number of complete runs until Ctrl-C or SIGTERM, in words; empty if neither ended the repetition."""
        is_over = self.is_settled or len(self.runs) >= self.most or self.is_generator_limit
        return "" if is_over else f"interrupted after {counted(len(self.runs), 'run')}"

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of the runs, each with its runs unless it applies to all."""
        runs_of: dict[str, list[str]] = {}
        for number, run in enumerate(self.runs, start=1):
            for note in run.notes:
                runs_of.setdefault(note, []).append(str(number))
        count = len(self.runs)
        notes = [
            note if len(runs) == count else f"run{'s' if len(runs) > 1 else ''} {', '.join(runs)} of {count}: {note}"
            for note, runs in runs_of.items()
        ]
        return (*notes, *self.extra_notes)

    @property
    def cases(self) -> list[Case]:
        first, *others = [
            [case for case in run.cases if case.name not in {str(result.gate) for result in self.gates}]
            for run in self.runs
        ]
        problems = {
            case.name: [each.problem for cases in (first, *others) for each in cases if each.name == case.name]
            for case in first
        }
        return [
            *(Case(name, "\n".join(dict.fromkeys(filter(None, found)))) for name, found in problems.items()),
            *(result.case for result in self.gates),
            Case("the figure settled", error="" if self.is_settled else self.interruption or self.statement),
        ]


def judge_repetition(
    runs: Sequence[RunOutcome],
    gates: Sequence[Threshold],
    settling: Settling,
    most: int,
    extra_notes: tuple[str, ...] = (),
) -> RepetitionOutcome:
    """Judge repeated runs, whose own gates do not count."""
    results = gates_over(gates, runs)
    return RepetitionOutcome(tuple(runs), results, settling, most, extra_notes)


def describe_interval(figure: str, interval: MedianInterval) -> str:
    show = "{:,.1f}/s".format if figure == "rate" else "{:.2f} ms".format
    ends = f"{show(interval.low)} to {show(interval.high)}"
    return f"median {show(interval.median)}, {100 * CONFIDENCE:g} % interval {ends}"


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if len(known) == len(values) else None
