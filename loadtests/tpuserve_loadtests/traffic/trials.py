"""What `search` asks of a rate: run it, as often as it takes to tell, and say whether the objectives were kept."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.arrivals.rate_profile import RateProfile, Segment
from tpuserve_loadtests.judgement.generator import judge_generator
from tpuserve_loadtests.judgement.objective import Answer, Sample, judge
from tpuserve_loadtests.judgement.threshold import Threshold
from tpuserve_loadtests.measurement.measured import STOPPED_EARLY, Measured
from tpuserve_loadtests.searching import Outcome, Probe
from tpuserve_loadtests.statistics.early_stopping import queries_needed

# A rate that is neither shown to hold nor to fail is run so often; then it does not hold.
_RUNS = 4
# A run whose requests were sent late says nothing of the server, and is made again; so often in all.
_TAKES = 3


class Interrupted(Exception):
    """A person has ended the search."""


class GeneratorLimit(Exception):
    """The generator could not send a rate as it should; the message says why."""


class NothingAnswered(Exception):
    """Not one request of a run was answered; the message says with what they failed."""


@dataclass
class Trials:
    """`run` runs a load; `base` says all of it but the rate. `probes` are those so far, each with its last run."""

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
        """Run a load; the same once more if something else had the generator's machine."""
        for _ in range(_TAKES):
            measured = self.run(load)
            if _is_interrupted(measured) or not judge_generator(measured, self.objectives).was_disturbed:
                break
        self.check(measured)
        return measured

    def missed_by(self, measured: Measured) -> list[str]:
        """Objectives that one run alone shows to be missed, in words."""
        samples = {gate: _sample(gate, measured) for gate in self.objectives if gate.percentile is not None}
        answers = [_answer(gate, measured, samples.get(gate)) for gate in self.objectives]
        return [words for answer, words in answers if answer is Answer.MISSED]

    def _load(self, rate_per_s: float) -> Load:
        percentiles = [gate.percentile for gate in self.objectives if gate.percentile is not None]
        fewest = max((queries_needed(percentile) for percentile in percentiles), default=1)
        seconds = max(self.base.seconds, 1.1 * fewest / rate_per_s)
        # Every trial has arrivals of its own: what was found must not hold for one sequence of them alone.
        seed = self.base.seed + 1000 * (len(self.probes) + 1)
        profile = RateProfile((Segment(seconds, rate_per_s, rate_per_s),))
        return replace(self.base, seconds=seconds, profile=profile, seed=seed)

    def check(self, measured: Measured) -> None:
        """Raise what makes a run say nothing about the objectives, as `attempt` does."""
        if _is_interrupted(measured):
            raise Interrupted
        errors = measured.recorder.errors()
        if errors and measured.total.failures == measured.total.requests:
            raise NothingAnswered(f"not one of {measured.total.requests:,} requests was answered: {errors[0].message}")
        verdict = judge_generator(measured, self.objectives)
        if verdict.fails(strict=not self.trust_generator):
            raise GeneratorLimit(f"at {measured.load} the load generator was the limit: {'; '.join(verdict.limits)}")

    def _probe(self, rate_per_s: float, outcome: Outcome, words: list[str], measured: Measured) -> Probe:
        errors = measured.recorder.errors()
        failed = [f"{measured.total.failures:,} failed, most of them with {errors[0].message}"] if errors else []
        probe = Probe(rate_per_s, outcome, "; ".join([*words, *failed]))
        # A search may take dozens of tries, each of several megabytes for each line.
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
