"""Tests with simulated servers that resemble real ones: correlated requests, pauses, and slow rounds."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from tpuserve_loadtests.statistics.comparison import (
    Comparison,
    Failures,
    Figure,
    Ratio,
    Round,
    Sample,
    Verdict,
    compare,
)

ROUNDS = 10
REQUESTS = 1200  # 200 per second for six seconds
TRIALS = 50

Latencies = NDArray[np.float64]
# Changes the latencies of a run, in microseconds.
Effect = Callable[[Latencies, np.random.Generator], Latencies]


def times(factor: float) -> Effect:
    return lambda latencies, _: latencies * factor


def latencies_us(random: np.random.Generator, level_us: float, count: int = REQUESTS) -> Latencies:
    """Return latencies with a level that wanders (correlation 0.98 between requests), and pauses of 20 requests."""
    forgotten = 0.98 ** np.arange(count)
    wander = forgotten * np.cumsum(random.normal(0, 0.02, count) / forgotten)
    pauses = np.zeros(count)
    for start in random.integers(0, count, max(count // 500, 1)):
        pauses[start : start + 20] = random.uniform(0.2, 0.6)
    latencies: Latencies = level_us * np.exp(random.normal(0, 0.25, count) + wander + pauses)
    return latencies


def sample(latencies: Latencies, failures: int = 0, *, offered: float | None = None) -> Sample:
    rate = offered or 8e6 / latencies.mean()  # eight users
    values = np.unique(np.rint(latencies).astype(np.int64), return_counts=True)
    return Sample(*values, completed=len(latencies), seconds=len(latencies) / rate, failures=failures)


def rounds_of(
    seed: int,
    effect: Effect,
    *,
    rounds: int = ROUNDS,
    failures: tuple[float, float] = (0.0, 0.0),
    offered: float | None = None,
) -> list[Round]:
    random = np.random.default_rng(seed)
    found = []
    for _ in range(rounds):
        level_us = 5_000 * random.lognormal(0, 0.05)  # effects of the machine on both sides
        a, b = (latencies_us(random, level_us * random.lognormal(0, 0.01)) for _ in range(2))
        failed = [int(random.binomial(REQUESTS, share)) for share in failures]
        of_b = sample(effect(b, random), failed[1], offered=offered)
        found.append(Round(sample(a, failed[0], offered=offered), of_b))
    return found


def with_middle_class(seed: int, *, lines: bool) -> list[Round]:
    """Return rounds in which the middle class of payloads, a fifth of the requests, takes 88 % longer in B."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(ROUNDS):
        level_us = 5_000 * random.lognormal(0, 0.05)
        sides = []
        for factor in (1.0, 1.88):
            sizes = random.choice(3, REQUESTS, p=[0.7, 0.2, 0.1])
            times = latencies_us(random, level_us * random.lognormal(0, 0.01)) * np.array([1, 3 * factor, 12])[sizes]
            sides.append((sample(times), {name: sample(times[sizes == at]) for at, name in enumerate("sml")}))
        (a, of_a), (b, of_b) = sides
        found.append(Round(a, b, {name: (of_a[name], of_b[name]) for name in "sml"} if lines else {}))
    return found


def verdicts(comparison: Comparison) -> dict[str, Verdict]:
    return {figure.name: figure.verdict for figure in comparison.figures}


def trials(effect: Effect) -> list[Comparison]:
    return [compare(rounds_of(seed, effect)) for seed in range(TRIALS)]


@pytest.mark.parametrize("rounds", [3, 6, 10])
def test_versions_without_a_difference_are_hardly_ever_worse_or_better(rounds: int) -> None:
    found = [compare(rounds_of(seed, times(1), rounds=rounds)).verdict for seed in range(200)]
    assert found.count(Verdict.WORSE) <= 2
    assert found.count(Verdict.BETTER) <= 2


def test_ten_rounds_prove_that_a_version_is_the_same() -> None:
    assert [each.verdict for each in trials(times(1))].count(Verdict.SAME) >= 48


@pytest.mark.parametrize(
    ("figure", "effect"),
    [
        ("p50", times(1.12)),
        ("mean", lambda found, random: np.where(random.random(len(found)) < 0.1, found * 3.9, found)),
        ("p99", lambda found, _: np.where(found > np.quantile(found, 0.98), found * 1.3, found)),
        ("p99.9", lambda found, random: found + 5e6 * (random.random(len(found)) < 0.005)),
    ],
    ids=["all requests +12 %", "mean +29 %", "p99 +30 %", "0.5 % of requests +5 s"],
)
def test_slower_version_is_found_in_nine_of_ten_trials(figure: str, effect: Effect) -> None:
    found = trials(effect)
    assert [each.verdict for each in found].count(Verdict.WORSE) >= 45
    if figure != "p99.9":
        assert sum(verdicts(each)[figure] is Verdict.WORSE for each in found) >= 45


def test_tail_of_a_few_slow_requests_is_found_by_p99_9_with_enough_requests() -> None:
    fast, slow = (sample(np.tile(np.linspace(1e3, last, 1000), 2)) for last in (2e3, 9e5))
    assert verdicts(compare([Round(fast, slow)] * ROUNDS))["p99.9"] is Verdict.WORSE


def test_slower_middle_class_is_found_in_the_distribution_and_as_a_line() -> None:
    found = [compare(with_middle_class(seed, lines=False)) for seed in range(TRIALS)]
    assert sum(verdicts(each)["distribution"] is Verdict.WORSE for each in found) >= 45
    parts = {figure.part for each in found for figure in each.figures if figure.name == "distribution"}
    assert parts <= {"p70 to p80", "p80 to p90"}
    lines = verdicts(compare(with_middle_class(0, lines=True)))
    assert (lines["m.mean"], lines["m.p50"], lines["s.p50"]) == (Verdict.WORSE, Verdict.WORSE, Verdict.SAME)


def test_line_below_one_percent_of_the_requests_is_not_judged() -> None:
    random = np.random.default_rng(1)
    few, many = (sample(latencies_us(random, 5_000, count)) for count in (5, 1000))
    rounds = [Round(many, many, {"few": (few, few), "many": (many, many)}) for _ in range(3)]
    assert not any(figure.name.startswith("few.") for figure in compare(rounds).figures)


def test_faster_version_is_better_in_all_its_figures() -> None:
    comparison = compare(rounds_of(1, times(0.8)))
    assert comparison.verdict is Verdict.BETTER
    assert verdicts(comparison).keys() == {"mean", "p50", "p90", "p99", "rate", "distribution"}
    assert comparison.omitted == ("p99.9",)
    by_name = {figure.name: figure.ratio for figure in comparison.figures}
    assert by_name["p50"].low < 0.8 < by_name["p50"].high
    assert by_name["rate"].ratio == pytest.approx(1.25, rel=0.05)


def test_open_load_does_not_judge_the_rate_that_it_sets() -> None:
    comparison = compare(rounds_of(2, times(1.3), offered=500.0), is_open=True)
    assert "rate" not in verdicts(comparison)
    assert comparison.rate is not None
    assert comparison.rate.ratio == pytest.approx(1)
    assert comparison.verdict is Verdict.WORSE


def test_difference_below_the_least_effect_is_the_same() -> None:
    rounds = rounds_of(4, times(1.03), rounds=60)
    assert compare(rounds).verdict is Verdict.SAME
    assert compare(rounds, least_effect=0.01).verdict is Verdict.WORSE


def test_figure_that_may_be_three_least_effects_worse_is_unclear() -> None:
    rounds = rounds_of(3, times(1))
    assert compare(rounds).verdict is Verdict.SAME
    p99 = next(figure for figure in compare(rounds).figures if figure.name == "p99")
    # Just small enough that three times as much is not excluded.
    stricter = compare(rounds, least_effect=(p99.at_worst - 1) / 3 * 0.99)
    assert (stricter.verdict, verdicts(stricter)["p99"]) == (Verdict.UNCLEAR, Verdict.UNCLEAR)


def test_distribution_of_very_different_rounds_is_not_called_the_same() -> None:
    random = np.random.default_rng(6)
    runs = [sample(latencies_us(random, 5_000 * random.lognormal(0, 0.5))) for _ in range(2 * ROUNDS)]
    comparison = compare([Round(a, b) for a, b in zip(runs[::2], runs[1::2], strict=True)])
    assert verdicts(comparison)["p50"] is Verdict.UNCLEAR
    assert verdicts(comparison)["distribution"] is Verdict.UNCLEAR


def test_better_figure_does_not_outweigh_an_unclear_one() -> None:
    ratio = Ratio(1.0, 1.0, 1.0, 0.9, 1.1)
    better = Figure("p50", ratio, Verdict.BETTER, scarce=False)
    unclear = Figure("p99", ratio, Verdict.UNCLEAR, scarce=False)
    worse = Figure("rate", ratio, Verdict.WORSE, scarce=False)
    assert Comparison((better, unclear), 0.05).verdict is Verdict.UNCLEAR
    assert Comparison((better, unclear, worse), 0.05).verdict is Verdict.WORSE


def test_few_requests_raise_no_alarm() -> None:
    random = np.random.default_rng(4)
    runs = [sample(random.lognormal(8, 0.5, 30)) for _ in range(6)]
    comparison = compare([Round(a, b) for a, b in zip(runs[::2], runs[1::2], strict=True)])
    p99 = next(figure for figure in comparison.figures if figure.name == "p99")
    assert p99.scarce
    assert p99.verdict is Verdict.UNCLEAR


def test_version_that_answers_nothing_has_no_ratio_of_latencies() -> None:
    random = np.random.default_rng(5)
    nothing = Sample(np.empty(0, np.int64), np.empty(0, np.int64), 0, 6.0)
    comparison = compare([Round(sample(latencies_us(random, 5_000)), nothing) for _ in range(6)])
    assert [figure.name for figure in comparison.figures] == ["rate"]
    assert comparison.verdict is Verdict.WORSE


def test_failed_requests_count_as_late() -> None:
    """Version B refuses the slow half of its requests, which makes the others faster."""
    random = np.random.default_rng(6)
    rounds = []
    for _ in range(ROUNDS):
        a, b = (np.sort(latencies_us(random, 5_000)) for _ in range(2))
        rounds.append(Round(sample(a), sample(b[: REQUESTS // 2 + 10], REQUESTS // 2 - 10)))
    comparison = compare(rounds)
    assert verdicts(comparison)["p50"] is Verdict.SAME
    assert "p99" in comparison.omitted
    assert comparison.verdict is Verdict.WORSE


def failing(share_a: float, share_b: float, seed: int = 7) -> Failures:
    """Return the judged failures of versions that are equally fast and fail these shares of requests."""
    comparison = compare(rounds_of(seed, times(1), failures=(share_a, share_b)))
    assert comparison.failures is not None
    return comparison.failures


@pytest.mark.parametrize(
    ("share_a", "share_b", "expected"),
    [
        (0.0, 0.05, Verdict.WORSE),
        (0.05, 0.0, Verdict.BETTER),
        (0.05, 0.05, Verdict.FAILING),
        (0.05, 0.1, Verdict.WORSE),
        (0.0, 0.0, Verdict.SAME),
    ],
)
def test_shares_of_failed_requests_are_compared(share_a: float, share_b: float, expected: Verdict) -> None:
    found = failing(share_a, share_b)
    assert found.verdict is expected
    assert found.shares.low <= found.shares.difference <= found.shares.high


def test_versions_that_fail_the_same_share_are_hardly_ever_worse_or_better() -> None:
    found = [failing(0.02, 0.02, seed).verdict for seed in range(20)]
    assert found.count(Verdict.FAILING) >= 19


def test_one_half_percent_of_new_failures_is_worse() -> None:
    assert [failing(0.0, 0.005, seed).verdict for seed in range(20)].count(Verdict.WORSE) >= 18
