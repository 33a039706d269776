"""Search for the highest rate that keeps objectives such as `p99<=20ms`, with 99 % confidence for percentiles.

A failed request counts as late. The statistics assume independent requests, as LoadGen does (early_stopping). Late
requests often cluster, so the search repeats a passing rate with other arrivals. It widens the range until a rate
fails, bisects it, then verifies the result. This module sends no requests and reads no clock.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count, repeat
from typing import Final, TypeAlias

from tpuserve_formats.counted import counted
from tpuserve_formats.price import Price
from tpuserve_loadtests.arrivals.load import Load, RateProfile, Segment
from tpuserve_loadtests.judgement.exit_codes import EXIT_FAILED, EXIT_GENERATOR, EXIT_INTERRUPTED
from tpuserve_loadtests.judgement.run import Rules, judge_generator
from tpuserve_loadtests.judgement.spending import Spending
from tpuserve_loadtests.judgement.threshold import Threshold
from tpuserve_loadtests.measurement.measured import INTERRUPTED, Measured, Part
from tpuserve_loadtests.monitoring.watched import Watched, changes
from tpuserve_loadtests.statistics.early_stopping import late_allowed, queries_needed


class Answer(StrEnum):
    KEPT = "kept"
    MISSED = "missed"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Sample:
    """Requests that count for a percentile objective, and the number of them that were late or failed."""

    requests: int
    late: int

    def __add__(self, other: "Sample") -> "Sample":
        return Sample(self.requests + other.requests, self.late + other.late)


def judge(sample: Sample, percentile: float) -> tuple[Answer, str]:
    """Return the result for a percentile (0 to 100), with a description."""
    allowed = late_allowed(sample.requests, percentile)
    words = f"{sample.late:,} of {sample.requests:,} late"
    if allowed is not None:
        words += f", {allowed:,} allowed"
        if sample.late <= allowed:
            return Answer.KEPT, words
    # Too few requests to show that the objective is kept can still show that it is missed.
    in_time_allowed = late_allowed(sample.requests, 100 - percentile)
    if in_time_allowed is not None and sample.requests - sample.late <= in_time_allowed:
        return Answer.MISSED, words
    return Answer.UNCLEAR, words if allowed is not None else f"{words}, too few requests for a verdict"


def is_objective(threshold: Threshold) -> bool:
    """Return whether a threshold is an upper limit on anything except a rate, and so an objective for every rate."""
    return threshold.metric not in ("rate", "goodput") and threshold.relation in ("<", "<=")


# The search halves a failing rate, down to this share of the first rate.
_LOWEST: Final = 1 / 64
_WIDEN: Final = 2.0
# Limit for results that a repeated trial reverses, after which the search ends.
_CORRECTIONS: Final = 4


class Outcome(StrEnum):
    HOLDS = "holds"
    FAILS = "fails"


@dataclass(frozen=True, slots=True)
class Probe:
    rate_per_s: float
    outcome: Outcome
    reason: str

    @property
    def holds(self) -> bool:
        return self.outcome is Outcome.HOLDS


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search: `best` is the highest rate that held, `ceiling` the next rate, which failed.

    If `best` is None, even the lowest rate fails. If `ceiling` is None, the highest permitted rate holds.
    """

    best: Probe | None
    ceiling: Probe | None


Try = Callable[[float], Probe]


def search_rates(attempt: Try, start_per_s: float, highest_per_s: float, precision: float) -> Found:
    """Search until a passing and a failing rate are within `precision` (0.02: 2 %), each confirmed by a second trial.

    A rate near the limit holds only with some arrivals, so a single trial could end the search too early.
    """
    first = attempt(min(start_per_s, highest_per_s))
    lowest_per_s = start_per_s * _LOWEST
    best, ceiling = (
        _above(attempt, first, highest_per_s, repeat(_WIDEN))
        if first.holds
        else _below(attempt, first, lowest_per_s, repeat(_WIDEN))
    )
    if best is None or ceiling is None:
        return Found(best, ceiling)
    for _ in range(_CORRECTIONS):
        best, ceiling = _bisect(attempt, best, ceiling, precision)
        again = attempt(best.rate_per_s)
        if not again.holds:
            below, ceiling = _below(attempt, again, lowest_per_s, _growing(precision))
            if below is None:
                return Found(None, ceiling)
            best = below
            continue
        best = again
        above = attempt(ceiling.rate_per_s)
        if not above.holds:
            return Found(best, above)
        best, ceiling = _above(attempt, above, highest_per_s, _growing(precision))
        if ceiling is None:
            return Found(best, None)
    return Found(best, ceiling)


def _below(attempt: Try, ceiling: Probe, lowest_per_s: float, factors: Iterable[float]) -> tuple[Probe | None, Probe]:
    """Divide a failing rate by each factor until a rate holds or the next one would be too low."""
    for factor in factors:
        if ceiling.rate_per_s / factor < lowest_per_s:
            break
        probe = attempt(ceiling.rate_per_s / factor)
        if probe.holds:
            return probe, ceiling
        ceiling = probe
    return None, ceiling


def _above(attempt: Try, best: Probe, highest_per_s: float, factors: Iterable[float]) -> tuple[Probe, Probe | None]:
    """Multiply a rate that holds by each factor until a rate fails or the highest one holds."""
    for factor in factors:
        if best.rate_per_s >= highest_per_s:
            break
        probe = attempt(min(best.rate_per_s * factor, highest_per_s))
        if not probe.holds:
            return best, probe
        best = probe
    return best, None


def _growing(precision: float) -> Iterator[float]:
    return (1 + precision * 2**step for step in count())


def _bisect(attempt: Try, best: Probe, ceiling: Probe, precision: float) -> tuple[Probe, Probe]:
    while ceiling.rate_per_s > best.rate_per_s * (1 + precision):
        middle = attempt((best.rate_per_s * ceiling.rate_per_s) ** 0.5)
        if middle.holds:
            best = middle
        else:
            ceiling = middle
    return best, ceiling


# A trial with its last run and the server's metrics.
Trial: TypeAlias = tuple[Probe, Watched]


@dataclass(frozen=True, slots=True)
class Searched:
    """The outcome of a search. `found` is None if the search did not end, for the reason in `problem`.

    `exit_code` is the code for that reason. `alone` is the run of one user, and None if it did not end. `rows` is the
    mean number of rows per request. `price` is that of the server's machine, if known.
    """

    found: Found | None
    trials: Sequence[Trial]
    alone: Watched | None = None
    problem: str = ""
    exit_code: int = 0
    rows: float = 1.0
    price: Price | None = None

    @property
    def probes(self) -> list[tuple[Probe, Measured]]:
        return [(probe, watched.runs[0]) for probe, watched in self.trials]

    @property
    def spendings(self) -> list[Spending | None]:
        """The cost and the energy of each trial, in order, or None for a rate that does not hold.

        Such a trial may end early, while the responses to its warm-up still arrive.
        """
        return [
            Spending(watched.runs[0].rate_per_s, self.rows, self.price, watched.energy) if probe.holds else None
            for probe, watched in self.trials
        ]

    @property
    def spending(self) -> Spending | None:
        """The cost and the energy at the highest rate that holds, from its last trial, or None without such a rate."""
        best = self.found.best if self.found else None
        found = [
            spending
            for (probe, _), spending in zip(self.trials, self.spendings, strict=True)
            if best is not None and probe.rate_per_s == best.rate_per_s
        ]
        return found[-1] if found else None

    @property
    def runs(self) -> list[Measured]:
        """All loads: one user alone, then the trials."""
        return [*(self.alone.runs if self.alone else ()), *(measured for _, measured in self.probes)]

    @property
    def server_rows(self) -> list[tuple[str, Watched]]:
        """The runs that show the bottleneck: one user alone, the highest rate that holds, the lowest that fails."""
        alone = [(str(self.alone.runs[0].load), self.alone)] if self.alone else []
        return [*alone, *((f"{probe.rate_per_s:,.1f}/s {probe.outcome}", watched) for probe, watched in self.around)]

    @property
    def bottleneck(self) -> str:
        """The changes from one user alone to the lowest failing rate, or an empty string if they are unknown."""
        failed = [(probe, watched) for probe, watched in self.around if not probe.holds]
        if self.alone is None or not failed:
            return ""
        probe, watched = failed[-1]
        changed = changes(self.alone, watched)
        return f"{probe.rate_per_s:,.1f}/s compared with {self.alone.runs[0].load}: {changed}" if changed else ""

    def server_notes(self, known_note: str = "") -> list[str]:
        """Return the distinct notes on the server's metrics, except the argument."""
        notes = dict.fromkeys(watched.note for _, watched in self.server_rows)
        return [note for note in notes if note not in ("", known_note)]

    @property
    def around(self) -> list[Trial]:
        """The last trials of the highest rate that holds and of the lowest higher rate that fails, as far as known.

        An unfinished search has no result, so its trials determine both.
        """
        trials = {probe.rate_per_s: (probe, watched) for probe, watched in self.trials}
        if self.found is not None:
            rates = [probe.rate_per_s for probe in (self.found.best, self.found.ceiling) if probe]
        else:
            held = max((rate for rate, (probe, _) in trials.items() if probe.holds), default=0.0)
            rates = [
                held,
                min((rate for rate, (probe, _) in trials.items() if not probe.holds and rate > held), default=0.0),
            ]
        return [trials[rate] for rate in rates if rate in trials]

    @property
    def statement(self) -> str:
        found, problem, probes = self.found, self.problem, [probe for probe, _ in self.probes]
        if found is None:
            held = max((probe.rate_per_s for probe in probes if probe.holds), default=None)
            so_far = "no rate was shown to hold" if held is None else f"{held:,.1f}/s was the highest rate that held"
            return f"The search stopped early: {problem}. Until then, {so_far}."
        if found.best is None and not probes:
            return f"No rate holds: a single user already misses the objective, with {problem}."
        if found.best is None:
            tried = min(probe.rate_per_s for probe in probes)
            return f"No rate holds: the lowest was {tried:,.1f}/s ({found.ceiling.reason if found.ceiling else ''})."
        above = (
            "no higher rate was tried" if found.ceiling is None else f"{found.ceiling.rate_per_s:,.1f}/s does not hold"
        )
        reason = f"at 99 % confidence; {found.best.reason}"
        return f"Highest rate that holds: {found.best.rate_per_s:,.1f}/s ({reason}). {above.capitalize()}."


# Limit for runs of a rate without a clear result, after which the rate fails.
_RUNS = 4
# Limit for attempts of a run whose requests were late, which reveals nothing about the server.
_TAKES = 3
# Smallest share of a line for which a trial becomes longer, because the share is estimated from one short run.
_LEAST_SHARE: Final = 0.01


class SearchEnded(Exception):
    """Error that ends a search without a result. The message states the reason, and `exit_code` is its code."""

    exit_code: int


class Interrupted(SearchEnded):
    """Error for a search that the user interrupted."""

    exit_code = EXIT_INTERRUPTED


class GeneratorLimit(SearchEnded):
    """Error for a rate that the generator could not send as scheduled."""

    exit_code = EXIT_GENERATOR


class NothingAnswered(SearchEnded):
    """Error for a run in which every request failed. The message names an error."""

    exit_code = EXIT_FAILED


@dataclass
class Trials:
    """Trials of rates. `run` runs a load, `base` is the load without the rate.

    `done` are the trials so far, and `alone` is the run of one user before them. `share` is the smallest share of the
    requests that a percentile judges.
    """

    run: Callable[[Load], Watched]
    base: Load
    rules: Rules
    on_probe: Callable[[Probe], None] = lambda probe: None
    done: list[Trial] = field(default_factory=list)
    alone: Watched | None = None
    share: float = 1.0

    def begin(self, watched: Watched) -> list[str]:
        """Return descriptions of the objectives that a run of one user alone shows to be missed.

        Its shares of the lines set the length of the trials. Raises the same errors as `attempt`.
        """
        self.alone, alone = watched.condensed(), watched.runs[0]
        self._check(alone)
        percentiles = [gate for gate in self.rules.gates if gate.percentile is not None]
        judged = [part.tally.requests for gate in percentiles for part in self.rules.lines.judged(gate, alone)]
        self.share = max(min(judged) / max(alone.total.requests, 1) if judged else 1.0, _LEAST_SHARE)
        return [words for answer, words in self._answers(alone, {}) if answer is Answer.MISSED]

    def attempt(self, rate_per_s: float) -> Probe:
        """Try a rate. Raises Interrupted, GeneratorLimit and NothingAnswered."""
        load = self._load(rate_per_s)
        samples: dict[tuple[Threshold, str], Sample] = {}
        for _ in range(_RUNS):
            load = replace(load, seed=load.seed + 1)
            watched = self._measure(load)
            measured = watched.runs[0]
            answers = self._answers(measured, samples)
            if all(answer is Answer.KEPT for answer, _ in answers):
                return self._probe(rate_per_s, Outcome.HOLDS, [words for _, words in answers], watched)
            missed = [words for answer, words in answers if answer is Answer.MISSED]
            if missed or measured.stopped:
                return self._probe(rate_per_s, Outcome.FAILS, missed or [measured.stopped], watched)
        unclear = [words for answer, words in answers if answer is Answer.UNCLEAR]
        reasons = [*unclear, f"not shown to hold in {_RUNS} runs"]
        return self._probe(rate_per_s, Outcome.FAILS, reasons, watched)

    def searched(self, found: Found | None, problem: str = "", exit_code: int = 0) -> Searched:
        return Searched(found, self.done, self.alone, problem, exit_code)

    def _measure(self, load: Load) -> Watched:
        """Run a load, again if another process disturbed the generator."""
        for _ in range(_TAKES):
            watched = self.run(load)
            measured = watched.runs[0]
            if measured.stopped == INTERRUPTED or not judge_generator(measured, self.rules.gates).was_disturbed:
                break
        self._check(measured)
        return watched

    def _answers(self, measured: Measured, samples: dict[tuple[Threshold, str], Sample]) -> list[tuple[Answer, str]]:
        """Return the result of each objective, for each part that it judges.

        Adds the run to the `samples` of percentiles by objective and part, which decide about them. As in `run`, an
        objective of all requests is also missed by a part that breaks it with 99 % confidence. Without an objective for
        failures, a wrong response is one that is missed.
        """
        lines, found = self.rules.lines, []
        for gate, objective in zip(self.rules.gates, self.rules.objectives, strict=True):
            answers = [_answer(objective, part, samples) for part in lines.judged(gate, measured)]
            if all(answer is not Answer.MISSED for answer, _ in answers):
                answers += [(Answer.MISSED, _answer(objective, part, {})[1]) for part in lines.broken(gate, measured)]
            found += answers
        wrong = measured.total.wrong
        if wrong and not any(gate.metric in ("error_rate", "wrong", "wrong_rate") for gate in self.rules.gates):
            found.append((Answer.MISSED, counted(wrong, "wrong response")))
        return found

    def _load(self, rate_per_s: float) -> Load:
        percentiles = [gate.percentile for gate in self.rules.gates if gate.percentile is not None]
        fewest = max((queries_needed(percentile) for percentile in percentiles), default=1)
        seconds = max(self.base.seconds, 1.1 * fewest / (rate_per_s * self.share))
        # Every trial has different arrivals, so that the result does not depend on a single sequence.
        seed = self.base.seed + 1000 * (len(self.done) + 1)
        profile = RateProfile((Segment(seconds, rate_per_s, rate_per_s),))
        return replace(self.base, seconds=seconds, profile=profile, seed=seed)

    def _check(self, measured: Measured) -> None:
        """Raise the errors of `attempt` if a run is unusable for the objectives."""
        if measured.stopped == INTERRUPTED:
            raise Interrupted(INTERRUPTED)
        errors = measured.recorder.errors()
        if errors and measured.total.failures == measured.total.requests:
            raise NothingAnswered(f"all {counted(measured.total.requests, 'request')} failed: {errors[0].message}")
        verdict = judge_generator(measured, self.rules.gates)
        if verdict.fails(strict=self.rules.strict):
            raise GeneratorLimit(f"at {measured.load} the load generator was the limit: {'; '.join(verdict.limits)}")

    def _probe(self, rate_per_s: float, outcome: Outcome, words: list[str], watched: Watched) -> Probe:
        measured = watched.runs[0]
        errors = measured.recorder.errors()
        failed = [f"{measured.total.failures:,} failed, most frequent error: {errors[0].message}"] if errors else []
        probe = Probe(rate_per_s, outcome, "; ".join([*words, *failed]))
        # A search may need dozens of trials, each with several megabytes per line.
        self.done.append((probe, watched.condensed()))
        self.on_probe(probe)
        return probe


def _answer(objective: Threshold, part: Part, samples: dict[tuple[Threshold, str], Sample]) -> tuple[Answer, str]:
    """Return the result of an objective for one part, with a description. Add a percentile's part to the `samples`."""
    if objective.percentile is not None:
        key, sample = (objective, part.name), Sample(part.tally.requests, part.tally.late(objective.value))
        samples[key] = samples.get(key, Sample(0, 0)) + sample
        answer, words = judge(samples[key], objective.percentile)
    else:
        figure = objective.figure(part)
        is_kept = figure is not None and objective.is_true_of(figure)
        answer, words = Answer.KEPT if is_kept else Answer.MISSED, objective.show(figure)
    return answer, f"{objective}{f' of {part.name}' if part.name else ''}: {words}"
