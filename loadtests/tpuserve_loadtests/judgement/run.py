"""Outcome of a run: measurements, verdicts and exit code. The load generator may itself have limited the run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tpuserve_formats.price import Price
from tpuserve_loadtests.judgement.exit_codes import EXIT_FAILED, EXIT_GATE, EXIT_GENERATOR
from tpuserve_loadtests.judgement.spending import Spending
from tpuserve_loadtests.judgement.threshold import GateResult, Threshold, gate_results
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.measurement.recorder import Summary
from tpuserve_loadtests.monitoring.server_side import Seen
from tpuserve_loadtests.monitoring.watched import Watched
from tpuserve_loadtests.rendering.report import ANSWERED, GENERATOR, Case
from tpuserve_loadtests.requests.protocols import TITLES

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
    tolerance_ms = max(LATE_MS, LATE_SHARE * max(measured.total.percentile_ms(99) or 0.0, least_ms))
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
class RunOutcome:
    """A finished run with its verdicts. With `strict`, a generator at its limit fails the run.

    `rows` is the mean number of rows per request. `watched` is the run with the server's metrics. `extra_notes` holds
    notes from before the run. `price` is that of the server's machine, if known.
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

    @property
    def spending(self) -> Spending:
        return Spending(self.measured.rate_per_s, self.rows, self.price, self.watched.energy)

    @property
    def total(self) -> Summary:
        return self.measured.total.summary("total", self.measured.rate_per_s)

    @property
    def line_kind(self) -> str:
        """The table's heading for lines: `protocol`, or `line` if lines differ in more than the protocol."""
        return "protocol" if set(self.measured.recorder.lines) <= LINE_TITLES.keys() else "line"

    @property
    def all_completed(self) -> bool:
        """Whether the server answered all requests, or a gate on `error_rate` decides.

        A wrong response counts as answered. The value is False without requests.
        """
        judged = any(result.gate.metric == "error_rate" for result in self.gates)
        return self.total.requests > 0 and (judged or self.total.failures == self.total.wrong)

    @property
    def all_correct(self) -> bool:
        """Whether no response was wrong, or a gate on wrong responses decides."""
        return self.total.wrong == 0 or any(result.gate.is_of_checks for result in self.gates)

    def with_notes(self, notes: tuple[str, ...]) -> "RunOutcome":
        return replace(self, extra_notes=(*self.extra_notes, *notes))

    def condensed(self) -> "RunOutcome":
        """Return the outcome without the run's windows, to save memory. The note on stability remains."""
        condensed = replace(self, measured=self.measured.condensed(), watched=self.watched.condensed())
        return condensed.with_notes((UNSETTLED,)) if self.measured.stable is False else condensed

    @property
    def exit_code(self) -> int:
        """The exit code of the first match: generator limit, failed gate, failed requests, success."""
        if self.generator.fails(strict=self.strict):
            return EXIT_GENERATOR
        if any(result.failed for result in self.gates):
            return EXIT_GATE
        return 0 if self.all_completed and self.all_correct else EXIT_FAILED

    @property
    def notes(self) -> tuple[str, ...]:
        measured = self.measured
        notes = [measured.stopped] if measured.stopped else []
        if measured.recorder.unanswered:
            notes.append(f"{measured.recorder.unanswered:,} {GIVEN_UP}")
        notes += [f"{NOT_TRUSTED}: {limit}" for limit in self.generator.limits]
        if measured.stable is False:
            notes.append(UNSETTLED)
        if measured.load.is_open:
            notes.append(FROM_DUE)
        notes += [note for note in (*self.extra_notes, self.watched.note) if note]
        return tuple(notes)

    @property
    def cases(self) -> list[Case]:
        errors = "\n".join(f"{error.count} x {error.message}" for error in self.measured.recorder.errors())
        limits = "\n".join(self.generator.limits) if self.generator.fails(strict=self.strict) else ""
        return [
            Case(ANSWERED, "" if self.all_completed else errors or "no request was sent"),
            *([Case("answers are right", "" if self.all_correct else errors)] if self.total.checked else []),
            Case(GENERATOR, limits),
            *(result.case for result in self.gates),
        ]


def judge_run(
    measured: Measured,
    *,
    model: str,
    rows: float,
    gates: tuple[Threshold, ...] = (),
    strict: bool = True,
    seen: Seen | None = None,
    extra_notes: tuple[str, ...] = (),
    price: Price | None = None,
) -> RunOutcome:
    """Judge a run. `seen` holds the server's metrics, if a page was watched, and the energy."""
    generator, results = judge_generator(measured, gates), gate_results(gates, measured)
    watched = Watched.of(measured, seen or Seen())
    return RunOutcome(model, rows, measured, generator, results, watched, strict, extra_notes, price)
