"""Outcome of a run: measurements, verdicts and exit code. The load generator may itself have limited the run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tpuserve_formats.price import Price
from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.judgement.exit_codes import exit_code
from tpuserve_loadtests.judgement.spending import Spending
from tpuserve_loadtests.judgement.threshold import (
    GateResult,
    Goodput,
    Hopeless,
    Lines,
    Threshold,
    latency_limit_ms,
    limits_us,
)
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.measurement.recorder import Summary
from tpuserve_loadtests.monitoring.server_side import Seen
from tpuserve_loadtests.monitoring.watched import Watched
from tpuserve_loadtests.rendering.report import ANSWERED, ENDED, GENERATOR, Case
from tpuserve_loadtests.requests.protocols import TITLES
from tpuserve_loadtests.statistics.comparison import LEAST_EFFECT

# A generator process can use one core. Above this use, the process probably limits the rate.
BUSY_CORES: Final = 0.9
# The generator keeps the schedule if 99 % of requests leave within this time after they are due. Alternatively, the
# delay may reach this share of p99 or of the latency limit.
LATE_MS: Final = 1.0
LATE_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class GeneratorVerdict:
    """Verdict on the load generator.

    `lag_p99_ms` is the p99 delay of sent requests in an open load. `limits` are the reasons to distrust the run. `lost`
    names workers that left, whose share the load therefore lacks.
    """

    cores: tuple[float, ...]
    lag_p99_ms: float | None
    dropped: int
    limits: tuple[str, ...]
    lost: tuple[str, ...] = ()

    @property
    def trusted(self) -> bool:
        return not self.limits

    @property
    def was_disturbed(self) -> bool:
        """Whether requests were late although the CPU was idle, perhaps because of another process."""
        return bool(self.limits) and not self.lost and not self.dropped and max(self.cores) < BUSY_CORES

    def fails(self, *, strict: bool) -> bool:
        """Return whether the generator fails the run.

        A lost worker always fails it. With `strict`, a generator at its limit fails it, too.
        """
        return bool(self.lost) or (strict and not self.trusted)


def judge_generator(measured: Measured, limits: Sequence[Threshold] = ()) -> GeneratorVerdict:
    """Judge CPU use, delays of sent requests, and dropped arrivals.

    If the run has latency `limits`, the lowest one sets the permitted delay.
    """
    lag_us = measured.recorder.lag.percentile_us(99)
    lag_ms = None if lag_us is None else lag_us / 1000
    dropped = measured.recorder.dropped
    reasons = [f"it lost the worker on {name}, so the figures omit that worker's requests" for name in measured.lost]
    if max(measured.cores) >= BUSY_CORES:
        several = "one of its processes" if len(measured.cores) > 1 else "it"
        reasons.append(f"{several} used {max(measured.cores):.2f} of one core; increase --processes")
    if dropped:
        reasons.append(f"{dropped:,} arrivals were dropped")
    least_ms = min((limit.value for limit in limits if limit.is_latency), default=0.0)
    tolerance_ms = max(LATE_MS, LATE_SHARE * max((measured.total.histogram.percentile_us(99) or 0) / 1000, least_ms))
    if lag_ms is not None and lag_ms > tolerance_ms:
        idle = f", although it used only {max(measured.cores):.2f} cores; another process may have used its CPU"
        why = "" if reasons else idle
        reasons.append(f"1 % of requests were sent more than {lag_ms:.1f} ms late{why}")
    return GeneratorVerdict(measured.cores, lag_ms, dropped, tuple(reasons), measured.lost)


LINE_TITLES: Final[dict[str, str]] = {**{str(name): title for name, title in TITLES.items()}, "total": "total"}
NOT_TRUSTED = "the load generator was the limit, so these figures are not reliable"
UNSETTLED = "the run was not stable: its last three fifths differ by more than 10 % in rate or median latency"
GIVEN_UP = "requests in flight were abandoned; the figures do not include them"
FROM_DUE = "latencies count from the scheduled time of a request, not from the time of sending"


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a command, by which it judges all its loads.

    `gates` are conditions of failure, and `lines` the lines that they select. With `strict`, a generator at its limit
    fails the load. A difference or a drift of at least `least_effect` (0.05: 5 %) counts. With `fail_if_unclear`, one
    that is neither certain nor excluded fails, too.
    """

    gates: tuple[Threshold, ...] = ()
    lines: Lines = field(default_factory=Lines)
    strict: bool = True
    least_effect: float = LEAST_EFFECT
    fail_if_unclear: bool = True

    @property
    def objectives(self) -> tuple[Threshold, ...]:
        """The opposites of the gates."""
        return tuple(gate.opposite for gate in self.gates)

    def results(self, measured: Measured) -> tuple[GateResult, ...]:
        return self.lines.results(self.gates, measured)

    def watched(self, load: Load) -> tuple[Load, Hopeless]:
        """Return the load, which then counts late responses, and the watcher that ends it once it cannot pass."""
        load = replace(load, limits_us=limits_us(self.gates))
        return load, Hopeless(self.gates, load)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """A finished run with its verdicts. With `strict`, a generator at its limit fails the run.

    `rows` is the mean number of rows per request, or 0 if it is unknown. `watched` is the run with the server's
    metrics. `extra_notes` holds notes from before the run. `price` is that of the server's machine, if known.
    `broken` describes the errors of the code that sent the requests, and fails the run.
    """

    model: str
    rows: float
    measured: Measured
    generator: GeneratorVerdict
    gates: tuple[GateResult, ...]
    watched: Watched
    strict: bool = True
    extra_notes: tuple[str, ...] = ()
    price: Price | None = None
    broken: str = ""

    @property
    def spending(self) -> Spending:
        return Spending(self.measured.rate_per_s, self.rows, self.price, self.watched.energy)

    @property
    def total(self) -> Summary:
        return self.measured.total.summary("total", self.measured.rate_per_s)

    @property
    def goodput(self) -> Goodput | None:
        """The rate of responses that met the objectives, or None without one on a percentile of all requests."""
        within_ms = latency_limit_ms(result.gate for result in self.gates)
        return Goodput.of(self.measured.whole, within_ms) if math.isfinite(within_ms) else None

    @property
    def line_kind(self) -> str:
        """The table's heading for lines: `protocol`, or `line` if lines differ in more than the protocol."""
        return "protocol" if set(self.measured.recorder.lines) <= LINE_TITLES.keys() else "line"

    @property
    def all_completed(self) -> bool:
        """Whether the server answered all requests, or a gate on `error_rate` decides.

        A wrong response counts as answered. The value is False without requests, unless an interrupt prevented them.
        """
        judged = any(result.gate.metric == "error_rate" for result in self.gates)
        began = self.total.requests > 0 or bool(self.measured.interruption)
        return began and (judged or self.total.failures == self.total.wrong)

    @property
    def all_correct(self) -> bool:
        """Whether no response was wrong, or a gate on wrong responses decides."""
        return self.total.wrong == 0 or any(result.gate.is_of_checks for result in self.gates)

    def with_notes(self, notes: tuple[str, ...]) -> "RunOutcome":
        return replace(self, extra_notes=(*self.extra_notes, *notes))

    def condensed(self) -> "RunOutcome":
        """Return the outcome without the run's windows, to save memory. The notes about them remain."""
        condensed = replace(self, measured=self.measured.condensed(), watched=self.watched.condensed())
        unsettled = (UNSETTLED,) if self.measured.stable is False else ()
        start = (self.measured.start_note,) if self.measured.start_note else ()
        return condensed.with_notes((*unsettled, *start))

    @property
    def exit_code(self) -> int:
        is_sound = self.all_completed and self.all_correct and not self.broken
        has_began = self.total.requests > 0 or not self.measured.interruption
        return exit_code(
            generator=self.generator.fails(strict=self.strict),
            gate=has_began and any(result.failed for result in self.gates),
            failed=not is_sound,
            interrupted=bool(self.measured.interruption),
            evidence=any(result.shortfall for result in self.gates),
        )

    @property
    def notes(self) -> tuple[str, ...]:
        measured = self.measured
        notes = [measured.interruption or measured.stopped] if measured.stopped else []
        if measured.recorder.unanswered:
            notes.append(f"{measured.recorder.unanswered:,} {GIVEN_UP}")
        notes += [f"{NOT_TRUSTED}: {limit}" for limit in self.generator.limits]
        if measured.stable is False:
            notes.append(UNSETTLED)
        if measured.start_note:
            notes.append(measured.start_note)
        if measured.parsed_note:
            notes.append(measured.parsed_note)
        if measured.load.is_open:
            notes.append(FROM_DUE)
        notes += _uneven_replicas(measured)
        notes += [note for note in (self.broken, *self.extra_notes, self.watched.note) if note]
        return tuple(notes)

    @property
    def cases(self) -> list[Case]:
        errors = "\n".join(f"{error.count} x {error.message}" for error in self.measured.recorder.errors())
        limits = "\n".join(self.generator.limits) if self.generator.fails(strict=self.strict) else ""
        return [
            Case(ENDED, error=self.measured.interruption),
            Case(ANSWERED, "" if self.all_completed else errors or "no request was sent"),
            *(
                [Case("answers are right", "" if self.all_correct else errors)]
                if self.total.checked or self.total.wrong
                else []
            ),
            Case(GENERATOR, limits),
            *(result.case for result in self.gates),
        ]


def _uneven_replicas(measured: Measured) -> list[str]:
    """Return a note for each replica that answered less than half of an even share."""
    answered = {line.name: line.requests - line.failures for line in measured.replicas()}
    total = sum(answered.values())
    return [
        f"the replica {name} answered {count:,} of {total:,} requests, less than half of an even share"
        for name, count in answered.items()
        if count < total / len(answered) / 2
    ]


def judge_run(
    measured: Measured,
    rules: Rules | None = None,
    *,
    model: str,
    rows: float,
    seen: Seen | None = None,
    extra_notes: tuple[str, ...] = (),
    price: Price | None = None,
    broken: str = "",
) -> RunOutcome:
    """Judge a run. `seen` holds the server's metrics, if any, and the energy."""
    rules = rules or Rules()
    generator, watched = judge_generator(measured, rules.gates), Watched.of(measured, seen or Seen())
    results = rules.results(measured)
    return RunOutcome(model, rows, measured, generator, results, watched, rules.strict, extra_notes, price, broken)
