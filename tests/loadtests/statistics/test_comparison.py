"""Tests with simulated servers that resemble real ones: correlated requests, pauses, and slow rounds."""

from dataclasses import replace

import numpy as np
import pytest

from tpuserve_loadtests.statistics.comparison import Block, Comparison, Failures, Figure, Ratio, Round, Verdict, compare

ROUNDS = 6
BLOCKS = 10
PER_BLOCK = 400
PAIRS = 100


def run(random: np.random.Generator, level_us: float, *, offered: float | None = None) -> tuple[Block, ...]:
    """Return a run of some thousand requests in blocks of a second. It is closed unless `offered` is a rate."""
    count = BLOCKS * PER_BLOCK
    # A slowly drifting level (correlation 0.98 between requests), and pauses that affect 20 consecutive requests.
    steps = random.normal(0, 0.02, count)
    forgotten = 0.98 ** np.arange(count)
    wander = forgotten * np.cumsum(steps / forgotten)
    pauses = np.zeros(count)
    for start in random.integers(0, count, 8):
        pauses[start : start + 20] = random.uniform(0.2, 0.6)
    latencies = level_us * np.exp(random.normal(0, 0.25, count) + wander + pauses)
    blocks = []
    for part in np.split(np.rint(latencies).astype(np.int64), BLOCKS):
        rate = offered or 8e6 / part.mean()  # eight users
        blocks.append(Block(*np.unique(part, return_counts=True), completed=len(part), seconds=len(part) / rate))
    return tuple(blocks)


def rounds_of(seed: int, factor: float, *, offered: float | None = None) -> list[Round]:
    random = np.random.default_rng(seed)
    found = []
    for _ in range(ROUNDS):
        level_us = 5_000 * random.lognormal(0, 0.05)  # effects of the machine on both sides
        a, b = (run(random, level_us * times * random.lognormal(0, 0.005), offered=offered) for times in (1, factor))
        found.append(Round(a, b))
    return found


def compared(seed: int, factor: float, *, offered: float | None = None) -> Comparison:
    return compare(rounds_of(seed, factor, offered=offered))


@pytest.mark.slow
def test_identical_versions_are_the_same_and_a_slower_one_is_worse() -> None:
    identical = [compared(seed, 1.0).verdict for seed in range(PAIRS)]
    assert identical.count(Verdict.SAME) >= 95
    slower = [compared(1_000 + seed, 1.1).verdict for seed in range(PAIRS)]
    assert slower.count(Verdict.WORSE) >= 90


def test_a_faster_version_is_better_in_all_its_figures() -> None:
    comparison = compared(1, 0.8)
    assert comparison.verdict is Verdict.BETTER
    assert {figure.name: figure.verdict for figure in comparison.figures}.keys() == {"p50", "p99", "rate"}
    by_name = {figure.name: figure.ratio for figure in comparison.figures}
    assert by_name["p50"].low < 0.8 < by_name["p50"].high
    assert by_name["rate"].ratio == pytest.approx(1.25, rel=0.05)


def test_an_open_load_has_the_same_rate_and_shows_the_latency() -> None:
    comparison = compared(2, 1.3, offered=500.0)
    verdicts = {figure.name: figure.verdict for figure in comparison.figures}
    assert (verdicts["p50"], verdicts["rate"]) == (Verdict.WORSE, Verdict.SAME)
    assert comparison.verdict is Verdict.WORSE


def test_a_difference_below_the_least_effect_is_the_same() -> None:
    comparison = compared(3, 1.03)
    assert comparison.verdict is Verdict.SAME
    assert compare(rounds_of(3, 1.03), least_effect=0.01).verdict is Verdict.WORSE


def test_what_may_be_three_times_the_least_effect_worse_is_unclear() -> None:
    comparison = compared(3, 1.0)
    p99 = next(figure for figure in comparison.figures if figure.name == "p99")
    assert (comparison.verdict, p99.verdict) == (Verdict.SAME, Verdict.SAME)
    # Just small enough that three times as much is not excluded.
    least = (p99.at_worst - 1) / 3 * 0.99
    stricter = compare(rounds_of(3, 1.0), least_effect=least)
    assert (stricter.verdict, stricter.figures[1].verdict) == (Verdict.UNCLEAR, Verdict.UNCLEAR)


def test_a_better_figure_does_not_outweigh_an_unclear_one() -> None:
    ratio = Ratio(1.0, 1.0, 1.0, 0.9, 1.1)
    better = Figure("p50", ratio, Verdict.BETTER, scarce=False)
    unclear = Figure("p99", ratio, Verdict.UNCLEAR, scarce=False)
    worse = Figure("rate", ratio, Verdict.WORSE, scarce=False)
    assert Comparison((better, unclear), 0.05).verdict is Verdict.UNCLEAR
    assert Comparison((better, unclear, worse), 0.05).verdict is Verdict.WORSE
    assert better.at_worst == pytest.approx(1.1)
    assert worse.at_worst == pytest.approx(1 / 0.9)


def test_few_requests_tell_nothing_and_raise_no_alarm() -> None:
    random = np.random.default_rng(4)

    def short() -> tuple[Block, ...]:
        values = np.sort(np.rint(random.lognormal(8, 0.5, 30)).astype(np.int64))
        return (Block(values, np.ones(30, np.int64), 30, 1.0),)

    comparison = compare([Round(short(), short()) for _ in range(3)])
    p99 = next(figure for figure in comparison.figures if figure.name == "p99")
    assert p99.scarce
    assert p99.verdict is Verdict.UNCLEAR


def test_a_version_that_answers_nothing_has_no_ratio_of_latencies() -> None:
    random = np.random.default_rng(5)
    nothing = (Block(np.empty(0, np.int64), np.empty(0, np.int64), 0, 1.0),)
    comparison = compare([Round(run(random, 5_000), nothing) for _ in range(3)])
    assert [figure.name for figure in comparison.figures] == ["rate"]
    assert comparison.verdict is Verdict.WORSE


def failing(share_a: float, share_b: float, seed: int = 7) -> Failures:
    """Return the judged failures of versions that are equally fast and fail these shares of requests."""
    random = np.random.default_rng(seed)

    def with_failures(blocks: tuple[Block, ...], share: float) -> tuple[Block, ...]:
        return tuple(replace(block, failures=int(random.binomial(PER_BLOCK, share))) for block in blocks)

    rounds = [Round(with_failures(each.a, share_a), with_failures(each.b, share_b)) for each in rounds_of(seed, 1.0)]
    comparison = compare(rounds)
    assert comparison.failures is not None
    assert (comparison.verdict is comparison.failures.verdict) or comparison.failures.verdict is Verdict.SAME
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
def test_the_shares_of_failed_requests_are_compared(share_a: float, share_b: float, expected: Verdict) -> None:
    found = failing(share_a, share_b)
    assert found.verdict is expected
    assert found.shares.low <= found.shares.difference <= found.shares.high


def test_versions_that_fail_the_same_share_are_hardly_ever_worse_or_better() -> None:
    verdicts = [failing(0.02, 0.02, seed).verdict for seed in range(20)]
    assert verdicts.count(Verdict.FAILING) >= 19


def test_the_same_measurements_give_the_same_intervals() -> None:
    rounds = rounds_of(6, 1.0)
    assert compare(rounds) == compare(rounds)
