"""Tests for the search against a simulated server of known capacity: one device, constant run time (M/D/1)."""

from collections.abc import Callable

import numpy as np
import pytest

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.judgement.run import Rules
from tpuserve_loadtests.judgement.search import GeneratorLimit, Interrupted, Outcome, Probe, Trials, search_rates
from tpuserve_loadtests.judgement.threshold import Lines, Threshold
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.measurement.recorder import Delivery, Recorder
from tpuserve_loadtests.monitoring.server_side import Seen
from tpuserve_loadtests.monitoring.watched import Watched

SERVICE_S = 0.005
SLO = Threshold.parse("p99<=40ms")


def answered(instants: np.ndarray) -> np.ndarray:
    """Return each request's response time. A request starts after all earlier requests (unrolled Lindley recursion)."""
    works = SERVICE_S * np.arange(1, len(instants) + 1)
    finished: np.ndarray = works + np.maximum.accumulate(instants - (works - SERVICE_S))
    return finished


def simulated(load: Load) -> Measured:
    recorder = Recorder(("grpc",), load)
    instants = np.fromiter(load.instants(), np.float64)
    for due_s, finished_s in zip(instants.tolist(), answered(instants).tolist(), strict=True):
        recorder.record("grpc", due_s, finished_s, None)
    return Measured(load, recorder, load.seconds, (0.1,))


def trials_of(run: Callable[[Load], Measured], base: Load, rules: Rules) -> Trials:
    return Trials(lambda load: Watched.of(run(load), Seen()), base, rules)


def true_rate() -> float:
    """Return the rate at which a hundredth of very many requests are late."""
    gaps = np.random.default_rng(0).exponential(1, 2_000_000)
    low, high = 0.3 / SERVICE_S, 1 / SERVICE_S
    for _ in range(20):
        rate = (low + high) / 2
        instants = np.cumsum(gaps / rate)
        late = (answered(instants) - instants > SLO.value / 1000).mean()
        low, high = (rate, high) if late <= 0.01 else (low, rate)
    return low


@pytest.mark.slow
def test_the_rate_that_is_found_is_within_five_percent_of_the_truth_for_every_seed() -> None:
    truth = true_rate()
    assert 140 < truth < 180  # between 0.7 and 0.9 of the device's capacity
    for seed in range(10):
        trials = trials_of(simulated, Load(60, 5, seed=seed), Rules((SLO.opposite,)))
        found = search_rates(trials.attempt, 20, 1e6, 0.02)
        assert found.best is not None
        assert found.best.rate_per_s == pytest.approx(truth, rel=0.05), f"seed {seed}"


def holds_up_to(limit: float, tried: list[float]) -> Callable[[float], Probe]:
    def attempt(rate: float) -> Probe:
        tried.append(rate)
        return Probe(rate, Outcome.HOLDS if rate <= limit else Outcome.FAILS, "")

    return attempt


@pytest.mark.parametrize("limit", [0.3, 7.0, 100.0, 12_345.0])
@pytest.mark.parametrize("share", [0.003, 1.0, 50.0])
def test_the_highest_rate_is_bracketed_from_any_start(limit: float, share: float) -> None:
    tried: list[float] = []
    found = search_rates(holds_up_to(limit, tried), share * limit, 1e6, 0.02)
    assert found.best is not None
    assert found.ceiling is not None
    assert limit / 1.02 <= found.best.rate_per_s <= limit < found.ceiling.rate_per_s
    assert len(tried) < 45
    assert tried[-2:] == [found.best.rate_per_s, found.ceiling.rate_per_s]  # the search confirms both


def test_no_rate_is_said_to_hold_where_none_does() -> None:
    found = search_rates(holds_up_to(0.0, []), 100, 1e6, 0.02)
    assert found.best is None
    assert found.ceiling is not None
    assert found.ceiling.rate_per_s < 2


def test_nothing_above_the_highest_rate_is_tried() -> None:
    tried: list[float] = []
    found = search_rates(holds_up_to(1e9, tried), 10, 500, 0.02)
    assert found.best is not None
    assert (found.best.rate_per_s, found.ceiling, max(tried)) == (500, None, 500)


def test_what_holds_by_luck_is_tried_again_and_taken_back() -> None:
    tried: list[float] = []

    def lucky(rate: float) -> Probe:
        fails = rate > 105 or (rate > 100 and any(before > 100 for before in tried))
        tried.append(rate)
        return Probe(rate, Outcome.FAILS if fails else Outcome.HOLDS, "")

    found = search_rates(lucky, 104, 1e6, 0.02)
    assert found.best is not None
    assert found.best.rate_per_s <= 100
    assert found.best.rate_per_s > 90


def test_a_trial_lasts_until_its_percentile_can_be_told() -> None:
    loads: list[Load] = []

    def run(load: Load) -> Measured:
        loads.append(load)
        return simulated(load)

    trials = trials_of(run, Load(1, 0), Rules((SLO.opposite,)))
    assert trials.attempt(10).holds
    assert loads[0].seconds == pytest.approx(50.5, rel=0.01)  # 459 requests, and a tenth
    assert not trials.attempt(250).holds
    assert len({load.seed for load in loads}) == len(loads)


def of_two_lines(slow_ms: float, share: float) -> Callable[[Load], Measured]:
    """Return a runner whose line `rare` gets a share of the requests and answers each in `slow_ms`."""

    def run(load: Load) -> Measured:
        recorder = Recorder(("common", "rare"), load)
        for number, due_s in enumerate(np.arange(0, load.seconds, load.seconds / 2000).tolist()):
            is_rare = number % round(1 / share) == 0
            recorder.record(
                "rare" if is_rare else "common", due_s, due_s + (slow_ms / 1000 if is_rare else 0.001), None
            )
        return Measured(load, recorder, load.seconds, (0.1,))

    return run


@pytest.mark.parametrize(
    ("objective", "found"),
    [
        ("p50<=40ms", "p50<=40ms of rare: 200 of 200 late"),
        ("rare.p50<=40ms", "rare.p50<=40ms: 200 of 200 late"),
        ("*.p50<=40ms", "*.p50<=40ms of rare: 200 of 200 late"),
        ("common.p50<=40ms", ""),
        ("p50<=60ms", ""),
    ],
)
def test_an_objective_judges_the_lines_that_it_selects(objective: str, found: str) -> None:
    lines = Lines({name: frozenset({name}) for name in ("common", "rare")})
    trials = trials_of(of_two_lines(50, 0.1), Load(10, 0), Rules((Threshold.parse(objective).opposite,), lines))
    probe = trials.attempt(200)
    assert probe.holds is not bool(found)
    assert found in probe.reason


@pytest.mark.parametrize(("objective", "holds"), [((), False), (("error_rate<=1%",), True)])
def test_a_rate_with_a_wrong_response_does_not_hold(objective: tuple[str, ...], holds: bool) -> None:
    def run(load: Load) -> Measured:
        measured = simulated(load)
        measured.recorder.record("grpc", 0.5, 0.51, "wrong response: not y", Delivery(compared=True, wrong=True))
        return measured

    gates = tuple(Threshold.parse(text).opposite for text in ("p99<=40ms", *objective))
    probe = trials_of(run, Load(10, 0), Rules(gates)).attempt(100)
    assert probe.holds is holds
    assert holds or "1 wrong response; 1 failed, most frequent error: wrong response: not y" in probe.reason


def test_a_trial_lasts_until_the_percentile_of_a_rare_line_can_be_told() -> None:
    loads: list[Load] = []
    answer = of_two_lines(1, 0.1)

    def run(load: Load) -> Measured:
        loads.append(load)
        return answer(load)

    rules = Rules((Threshold.parse("rare.p99<=40ms").opposite,), Lines({"rare": frozenset({"rare"})}))
    trials = trials_of(run, Load(1, 0), rules)
    assert trials.begin(Watched.of(answer(Load(2, 0, users=2)), Seen())) == []
    trials.attempt(100)
    assert loads[0].seconds == pytest.approx(50.5, rel=0.01)  # 4,590 requests, a tenth of them rare, and a tenth


def test_ctrl_c_and_a_generator_at_its_limit_end_the_search() -> None:
    def stopped(load: Load) -> Measured:
        return Measured(load, Recorder(("grpc",), load), 1, (0.1,), "interrupted")

    def busy(load: Load) -> Measured:
        return Measured(load, Recorder(("grpc",), load), 1, (0.99,))

    with pytest.raises(Interrupted):
        trials_of(stopped, Load(1), Rules((SLO.opposite,))).attempt(10)
    with pytest.raises(
        GeneratorLimit, match=r"at 10 requests/s, poisson the load generator was the limit: it used 0\.99 of one core"
    ):
        trials_of(busy, Load(1), Rules((SLO.opposite,))).attempt(10)


@pytest.mark.parametrize(("disturbed", "runs"), [(0, 1), (1, 2), (2, 3)])
def test_a_run_that_something_else_has_disturbed_is_made_again(disturbed: int, runs: int) -> None:
    loads: list[Load] = []

    def run(load: Load) -> Measured:
        loads.append(load)
        measured = simulated(load)
        for _ in range(len(loads) <= disturbed and 100):
            measured.recorder.record_lag(0.5, 0.2)
        return measured

    assert trials_of(run, Load(60, 0), Rules((SLO.opposite,))).attempt(50).holds
    assert len(loads) == runs
    assert len(set(loads)) == 1  # the same load, with the same arrivals


def test_a_search_on_a_machine_that_is_always_disturbed_ends() -> None:
    def run(load: Load) -> Measured:
        measured = simulated(load)
        measured.recorder.record_lag(0.5, 0.2)
        return measured

    with pytest.raises(GeneratorLimit, match=r"1 % of requests were sent more than 200\.\d ms late"):
        trials_of(run, Load(60, 0), Rules((SLO.opposite,))).attempt(50)
    assert trials_of(run, Load(60, 0), Rules((SLO.opposite,), strict=False)).attempt(50).holds
