"""Tests for the verdict on soaks of simulated servers that leak, slow down, fail or stay stable."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tpuserve_loadtests.judgement.soak import Course, Drift, judge_drift
from tpuserve_loadtests.measurement.measured import Segment

HOURS = 4
SEGMENTS = 48
SEEDS = range(200)

Going = Callable[[float], float]


def steady(_: float) -> float:
    return 1.0


def soak(
    seed: int,
    *,
    memory: Going = steady,
    latency: Going = steady,
    errors: Going = lambda _: 0.0,
    segments: int = SEGMENTS,
) -> list[Segment]:
    """Return the segments of a soak. Noise is 0.3 % in memory, and 2 % and 5 % in latencies.

    `memory` and `latency` map the hour to a factor.
    """
    random = np.random.default_rng(seed)
    seconds = HOURS * 3600 / segments
    found = []
    for number in range(segments):
        hour = HOURS * (number + 0.5) / segments
        found.append(
            Segment(
                start_s=3600 * hour - seconds / 2,
                seconds=seconds,
                requests=60_000,
                failures=int(random.binomial(60_000, min(errors(hour), 1))),
                rate_per_s=200 * random.normal(1, 0.01) / latency(hour),
                p50_ms=5 * latency(hour) * random.normal(1, 0.02),
                p90_ms=8.0,
                p95_ms=9.0,
                p99_ms=12 * latency(hour) * random.normal(1, 0.05),
                p99_9_ms=25.0,
                max_ms=30.0,
                memory_bytes=2e9 * memory(hour) * random.normal(1, 0.003),
            )
        )
    return found


def judged(segments: list[Segment], *, is_open: bool = False) -> dict[str, Drift]:
    return {drift.figure.name: drift for drift in judge_drift(segments, is_open=is_open)}


def drifting(segments: list[Segment]) -> set[str]:
    return {name for name, drift in judged(segments).items() if drift.course is Course.DRIFTING}


def test_a_leak_of_one_percent_an_hour_is_found() -> None:
    found = [drifting(soak(seed, memory=lambda hour: 1 + 0.01 * hour)) for seed in range(50)]
    assert found == [{"memory_bytes"}] * 50


def test_the_leaks_size_is_told() -> None:
    drift = judged(soak(1, memory=lambda hour: 1 + 0.01 * hour))["memory_bytes"]
    assert drift.share_per_hour == pytest.approx(0.01, rel=0.2)
    assert drift.low is not None
    assert drift.high is not None
    assert drift.low < 0.01 * 2e9 < drift.high


def test_a_steady_server_is_called_drifting_in_one_soak_of_a_hundred_at_most() -> None:
    assert sum(bool(drifting(soak(seed, errors=lambda _: 0.0005))) for seed in SEEDS) <= len(SEEDS) // 100


@pytest.mark.parametrize("until_hour", [0.5, 1, 2])
def test_memory_that_fills_up_and_then_stays_is_no_drift(until_hour: float) -> None:
    found = [drifting(soak(seed, memory=lambda hour: 1 + 0.1 * min(hour, until_hour))) for seed in range(20)]
    assert found == [set()] * 20


def test_what_went_on_at_first_alone_has_settled() -> None:
    drift = judged(soak(1, memory=lambda hour: 1 + 0.02 * (1 - 0.1**hour)))["memory_bytes"]
    assert drift.course is Course.SETTLED


def test_a_leak_that_begins_late_is_found_with_the_size_that_it_has_then() -> None:
    drift = judged(soak(2, memory=lambda hour: 1 + 0.05 * max(hour - 2, 0)))["memory_bytes"]
    assert drift.course is Course.DRIFTING
    assert drift.share_per_hour == pytest.approx(0.05, rel=0.1)


def test_latency_that_grows_lowers_what_a_closed_load_gets_too() -> None:
    slower = soak(4, latency=lambda hour: 1 + 0.05 * hour)
    assert drifting(slower) == {"p50_ms", "p99_ms", "rate_per_s"}
    assert "rate_per_s" not in judged(slower, is_open=True)


def test_failures_that_become_more_are_a_drift() -> None:
    assert drifting(soak(5, errors=lambda hour: 0.001 * hour)) == {"error_rate"}


def test_the_interval_of_a_drift_excludes_no_change() -> None:
    slower = [judged(soak(seed, latency=lambda hour: 1 + 0.05 * hour)) for seed in range(50)]
    drifts = [drift for found in slower for drift in found.values() if drift.course is Course.DRIFTING]
    assert len(drifts) > 100
    for drift in drifts:
        assert drift.low is not None
        assert drift.high is not None
        assert drift.low > 0 or drift.high < 0


def test_a_rate_that_may_have_fallen_by_most_of_it_is_unclear() -> None:
    random = np.random.default_rng(1)
    wild = [replace(each, rate_per_s=float(random.lognormal(5, 1.5))) for each in soak(3, segments=20)]
    drift = judged(wild)["rate_per_s"]
    assert drift.course is Course.UNCLEAR
    assert drift.low is not None
    assert drift.high is not None
    assert drift.low < 0 < drift.high
    assert judged(soak(3, segments=20))["rate_per_s"].course is Course.STEADY


def test_a_sure_trend_that_comes_to_nothing_is_none() -> None:
    assert drifting(soak(6, latency=lambda hour: 1 + 0.003 * hour, segments=480)) == set()


def test_a_server_that_becomes_faster_does_not_drift() -> None:
    found = judged(soak(7, latency=lambda hour: 1 - 0.05 * hour))
    assert found["p50_ms"].course is Course.BETTER


def test_few_segments_and_figures_that_nobody_told_are_unknown() -> None:
    assert {drift.course for drift in judged(soak(8, segments=9)).values()} == {Course.UNKNOWN}
    silent = [
        Segment(each.start_s, each.seconds, each.requests, 0, 100.0, 5.0, 6.0, 7.0, 9.0, 15.0, 20.0, None)
        for each in soak(9, segments=20)
    ]
    found = judged(silent)
    assert found["memory_bytes"].course is Course.UNKNOWN
    assert found["p50_ms"].course is Course.STEADY


def correlated(seed: int, segments: int, kind: str, *, figure: str = "p50_ms", noise: float = 0.05) -> list[Segment]:
    """Return the segments of an hour whose noise is correlated (0.4), and a change of one figure."""
    random = np.random.default_rng(seed)
    at = np.arange(segments)
    factors = {
        "steady": np.ones(segments),
        "step": np.where(at >= segments // 2, 2.0, 1.0),
        "pulse": np.where((at >= segments // 3) & (at < segments // 3 + segments // 10), 4.0, 1.0),
        "every fourth": np.where(at % 4 == 3, 10.0, 1.0),
        "last ten minutes": np.where(at >= segments - segments // 6, 5.0, 1.0),
        "fast from half time on": np.where(at >= segments // 2, 0.5, 1.0),
        "slow start": np.where(at < segments // 4, 2.0, 1.0),
    }[kind]
    found = []
    levels = np.zeros(3)
    for number, factor in enumerate(factors.tolist()):
        levels = 0.4 * levels + random.normal(0, noise * (1 - 0.4**2) ** 0.5, 3)
        p50, p99, rate = np.exp(levels).tolist()
        seconds = 3600 / segments
        failures = int(random.binomial(12_000, 0.001))
        segment = Segment(
            number * seconds, seconds, 12_000, failures, 200 * rate, 5 * p50, 8.0, 9.0, 12 * p99, 25.0, 30.0, 2e9
        )
        found.append(replace(segment, **{figure: getattr(segment, figure) * factor}))
    return found


@pytest.mark.parametrize("segments", [20, 60])
@pytest.mark.parametrize("figure", ["p50_ms", "p99_ms"])
@pytest.mark.parametrize("kind", ["step", "pulse", "every fourth", "last ten minutes"])
def test_change_of_a_latency_is_found_in_nine_of_ten_soaks(kind: str, figure: str, segments: int) -> None:
    found = [judged(correlated(seed, segments, kind, figure=figure))[figure].course for seed in range(50)]
    assert sum(course in (Course.CHANGED, Course.DRIFTING) for course in found) >= 45


@pytest.mark.parametrize("segments", [20, 60])
@pytest.mark.parametrize("kind", ["steady", "fast from half time on", "slow start"])
def test_steady_server_and_one_that_becomes_faster_have_not_changed(kind: str, segments: int) -> None:
    found = [judged(correlated(seed, segments, kind)) for seed in range(50)]
    bad = (Course.CHANGED, Course.DRIFTING)
    assert sum(any(drift.course in bad for drift in drifts.values()) for drifts in found) <= 1


def change(kind: str, figure: str) -> Drift:
    return judged(correlated(1, 20, kind, figure=figure, noise=0.01))[figure]


def test_change_is_described_with_its_size_and_place() -> None:
    step, pulse, last = (change(kind, "p50_ms") for kind in ("step", "pulse", "last ten minutes"))
    assert step.change == "p50 rose to 2 times from segment 11 of 20 on (at 30 min)"
    assert step.at_s == (1800.0,)
    assert pulse.change == "p50 rose to 3.93 times in 2 segments of 20 (segment 7, 8)"
    assert last.change == "p50 rose to 4.95 times from segment 18 of 20 on (at 51 min)"
    fourth = change("every fourth", "p99_ms")
    assert fourth.change == "p99 rose to 9.91 times in 5 segments of 20 (segment 4, 8, 12, 16, 20)"
    assert len(fourth.at_s) == 5


def test_rate_that_falls_and_failures_that_rise_have_changed() -> None:
    slower = change("fast from half time on", "rate_per_s")
    assert (slower.course, slower.change.split(" from ")[0]) == (Course.CHANGED, "rate fell to 0.499 times")
    failing = [replace(one, failures=600 if one.at_s > 1800 else 12) for one in correlated(1, 20, "steady")]
    found = judged(failing)["error_rate"]
    assert (found.course, found.change.split(" from ")[0]) == (Course.CHANGED, "failures rose by 4.9 points")
