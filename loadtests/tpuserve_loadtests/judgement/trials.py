"""Trials of a rate for `search`, repeated until the objectives are shown to be kept or missed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tpuserve_formats.counted import counted
from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.arrivals.rate_profile import RateProfile, Segment
from tpuserve_loadtests.judgement.generator import judge_generator
from tpuserve_loadtests.judgement.objective import Answer, Sample, judge
from tpuserve_loadtests.judgement.searching import Outcome, Probe
from tpuserve_loadtests.judgement.threshold import Threshold
from tpuserve_loadtests.measurement.measured import STOPPED_EARLY, Measured
from tpuserve_loadtests.statistics.early_stopping import queries_needed

# Limit for runs of a rate without a clear result, after which the rate fails.
_RUNS = 4
# Limit for attempts of a run whose requests were late, which reveals nothing about the server.
_TAKES = 3


class Interrupted(Exception):
    """Error for a search that the user interrupted."""


class GeneratorLimit(Exception):
    """Error for a rate that the generator could not send as scheduled. The message states the reason."""


class NothingAnswered(Exception):
    """Error for a run in which every request failed. The message names an error."""


@dataclass
class Trials:
    """Trials of rates. `run` runs a load, `base` is the load without the rate.

    `probes` are the trials so far, each with its last run.
    """

    run: Callable[[Load], Measured]
    base: Load
    objectives: Sequence[Threshold]
    trust_generator: bool = False
    on_probe: Callable[[Probe, Measured], None] = lambda probe, measured: None
    probes: list[tuple[Probe, Measured]] = field(default_factory=list)

    def attempt(self, rate_per_s: float) -> Probe:
        """Try a rate. Raises Interrupted, GeneratorLimit and NothingAnswered."""
        load = self._load(rate_per_s)
        samples = {gate: Sample(0, 0) for gate in self.objectives if gate.percentile is not None}
        for _ in range(_RUNS):
            load = replace(load, seed=load.seed + 1)
            measured = self._measure(load)
            for gate in samples:
                samples[gate] += _sample(gate, measured)
            answers = [_answer(gate, measured, samples.get(gate)) for gate in self.objectives]
            if all(answer is Answer.KEPT for answer, _ in answers):
                return self._probe(rate_per_s, Outcome.HOLDS, [words for _, words in answers], measured)
            missed = [words for answer, words in answers if answer is Answer.MISSED]
            if missed or measured.stopped:
                return self._probe(rate_per_s, Outcome.FAILS, missed or [words for _, words in answers], measured)
        return self._probe(rate_per_s, Outcome.FAILS, [words for _, words in answers], measured)

    def _measure(self, load: Load) -> Measured:
        """Run a load, again if another process disturbed the generator."""
        for _ in range(_TAKES):
            measured = self.run(load)
            if _is_interrupted(measured) or not judge_generator(measured, self.objectives).was_disturbed:
                break
        self.check(measured)
        return measured

    def missed_by(self, measured: Measured) -> list[str]:
        """Return descriptions of the objectives that a single run shows to be missed."""
        samples = {gate: _sample(gate, measured) for gate in self.objectives if gate.percentile is not None}
        answers = [_answer(gate, measured, samples.get(gate)) for gate in self.objectives]
        return [words for answer, words in answers if answer is Answer.MISSED]

    def _load(self, rate_per_s: float) -> Load:
        percentiles = [gate.percentile for gate in self.objectives if gate.percentile is not None]
        fewest = max((queries_needed(percentile) for percentile in percentiles), default=1)
        seconds = max(self.base.seconds, 1.1 * fewest / rate_per_s)
        # Every trial has different arrivals, so that the result does not depend on a single sequence.
        seed = self.base.seed + 1000 * (len(self.probes) + 1)
        profile = RateProfile((Segment(seconds, rate_per_s, rate_per_s),))
        return replace(self.base, seconds=seconds, profile=profile, seed=seed)

    def check(self, measured: Measured) -> None:
        """Raise the same errors as `attempt` if a run is unusable for the objectives."""
        if _is_interrupted(measured):
            raise Interrupted
        errors = measured.recorder.errors()
        if errors and measured.total.failures == measured.total.requests:
            raise NothingAnswered(f"all {counted(measured.total.requests, 'request')} failed: {errors[0].message}")
        verdict = judge_generator(measured, self.objectives)
        if verdict.fails(strict=not self.trust_generator):
            raise GeneratorLimit(f"at {measured.load} the load generator was the limit: {'; '.join(verdict.limits)}")

    def _probe(self, rate_per_s: float, outcome: Outcome, words: list[str], measured: Measured) -> Probe:
        errors = measured.recorder.errors()
        failed = [f"{measured.total.failures:,} failed, most frequent error: {errors[0].message}"] if errors else []
        probe = Probe(rate_per_s, outcome, "; ".join([*words, *failed]))
        # A search may need dozens of trials, each with several megabytes per line.
        self.probes.append((probe, measured.condensed()))
        self.on_probe(probe, measured)
        return probe


def _is_interrupted(measured: Measured) -> bool:
    return measured.stopped == STOPPED_EARLY


def _sample(gate: Threshold, measured: Measured) -> Sample:
    total = measured.total
    return Sample(total.requests, total.failures + total.histogram.count_above(gate.value * 1000))


def _answer(gate: Threshold, measured: Measured, sample: Sample | None) -> tuple[Answer, str]:
    if sample is not None and gate.percentile is not None:
        answer, words = judge(sample, gate.percentile)
        return answer, f"{gate}: {words}"
    figure = gate.figure(measured)
    kept = figure is not None and gate.is_true_of(figure)
    return Answer.KEPT if kept else Answer.MISSED, f"{gate}: {gate.show(figure)}"
