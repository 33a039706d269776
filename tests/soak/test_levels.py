"""Tests for the verdict on memory, threads and descriptors."""

import random
from collections.abc import Callable

import pytest

from tests.soak.levels import Sample, Verdict, judge
from tests.soak.soaked_server import Usage

HOUR_S = 3600


def samples(
    memory_mb: Callable[[float], float],
    *,
    threads: Callable[[float], int] = lambda _hours: 40,
    seconds: int = HOUR_S,
    worker: Callable[[float], int] = lambda _hours: 1,
) -> list[Sample]:
    """Return samples of a run, whose figures are functions of the hours since the start."""
    hours = [index / 200 for index in range(201)]
    return [
        Sample(hour * seconds, Usage(memory_mb(hour) + noise, threads(hour), 50), worker(hour))
        for hour, noise in zip(hours, (random.Random(1).gauss(0, 5) for _ in hours), strict=False)
    ]


@pytest.mark.parametrize(
    ("memory_mb", "verdict"),
    [
        (lambda _hours: 900, Verdict.LEVEL),
        (lambda hours: 900 + 100 * hours, Verdict.GROWS),
        (lambda hours: 900 + 200 * min(hours, 0.4), Verdict.LEVEL),  # caches that fill at first
        (lambda hours: 900 + 200 * max(hours - 0.5, 0), Verdict.GROWS),  # a leak that starts late
        (lambda hours: 900 - 100 * hours, Verdict.LEVEL),
        (lambda hours: 900 + (400 if 0.7 < hours < 0.75 else 0), Verdict.LEVEL),  # a large request
    ],
)
def test_the_second_half_decides_about_memory(memory_mb: Callable[[float], float], verdict: Verdict) -> None:
    memory, threads, descriptors = judge(samples(memory_mb))
    assert (memory.verdict, threads.verdict, descriptors.verdict) == (verdict, Verdict.LEVEL, Verdict.LEVEL)


def test_threads_that_grow_are_found() -> None:
    _, threads, _ = judge(samples(lambda _hours: 900, threads=lambda hours: 40 + int(20 * hours)))
    assert threads.verdict is Verdict.GROWS
    assert threads.per_hour == pytest.approx(20, abs=2)


def test_a_short_run_or_another_process_is_not_judged() -> None:
    for few in (
        samples(lambda hours: 900 * hours, seconds=60),
        samples(lambda hours: 900 * hours, worker=lambda hours: 1 + int(hours > 0.8)),
        samples(lambda hours: 900 * hours)[:3],
    ):
        assert {level.verdict for level in judge(few)} == {Verdict.UNKNOWN}
