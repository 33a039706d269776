import math
import random

import pytest

from tpuserve_loadtests.recorder import HIGHEST_TRACKABLE_US, MAX_DISTINCT_ERRORS, OTHER_ERRORS, Recorder, Tally


def exact_percentile(ordered: list[int], percent: float) -> int:
    return ordered[math.ceil(len(ordered) * percent / 100) - 1]


def test_percentiles_are_exact_to_three_digits_from_microseconds_to_minutes() -> None:
    source = random.Random(20)
    latencies = sorted(round(10 ** source.uniform(1, 8)) for _ in range(20_000))
    tally = Tally()
    for latency in latencies:
        tally.record_success(latency)
    for percent in (50, 90, 99):
        got = tally.percentile_ms(percent)
        assert got == pytest.approx(exact_percentile(latencies, percent) / 1000, rel=1e-3)


def test_sub_millisecond_latencies_are_not_rounded_away() -> None:
    tally = Tally()
    for latency_us in (412, 413, 414):
        tally.record_success(latency_us)
    assert tally.percentile_ms(50) == 0.413


def test_no_percentile_exceeds_the_largest_latency() -> None:
    tally = Tally()
    tally.record_success(1_000_001)  # shares a bucket with larger values
    summary = tally.summary("grpc", elapsed_s=1)
    assert summary.p99_ms == summary.max_ms == 1000.001


def test_latencies_out_of_range_are_clamped() -> None:
    tally = Tally()
    tally.record_success(0.2)
    assert tally.summary("grpc", 1).max_ms == 0.001
    tally.record_success(HIGHEST_TRACKABLE_US * 10)
    assert tally.summary("grpc", 1).max_ms == HIGHEST_TRACKABLE_US / 1000


def test_failures_count_as_requests_but_not_towards_rate_and_latency() -> None:
    recorder = Recorder(("grpc",))
    for _ in range(10):
        recorder.record("grpc", 5_000, None)
    for _ in range(90):
        recorder.record("grpc", 1, "UNAVAILABLE: gone")
    (summary,) = recorder.summaries(elapsed_s=2)
    assert (summary.requests, summary.failures, summary.rate_per_s) == (100, 90, 5)
    assert summary.p50_ms == pytest.approx(5, rel=1e-3)


def test_nothing_but_failures_has_no_latency() -> None:
    recorder = Recorder(("rest",))
    recorder.record("rest", 1, "HTTP 503: no")
    (summary,) = recorder.summaries(elapsed_s=1)
    assert (summary.p50_ms, summary.p99_ms, summary.max_ms, summary.rate_per_s) == (None, None, None, 0)


def test_total_has_the_percentiles_of_all_requests_together() -> None:
    recorder = Recorder(("grpc", "rest", "silent"))
    for latency_ms in range(1, 91):
        recorder.record("grpc", latency_ms * 1000, None)
    for latency_ms in range(91, 101):
        recorder.record("rest", latency_ms * 1000, None)
    total = recorder.total().summary("total", elapsed_s=10)
    assert total.requests == 100
    assert total.rate_per_s == 10
    assert total.p90_ms == pytest.approx(90, rel=1e-3)
    assert total.p99_ms == pytest.approx(99, rel=1e-3)
    assert total.max_ms == 100


def test_errors_come_with_counts_the_commonest_first() -> None:
    recorder = Recorder(("grpc", "rest"))
    for protocol, error in [("grpc", "a"), ("rest", "b"), ("rest", "b"), ("rest", "a")]:
        recorder.record(protocol, 1, error)
    errors = [(error.protocol, error.message, error.count) for error in recorder.errors()]
    assert errors[0] == ("rest", "b", 2)
    assert sorted(errors[1:]) == [("grpc", "a", 1), ("rest", "a", 1)]


def test_endless_distinct_errors_do_not_grow_memory() -> None:
    recorder = Recorder(("grpc",))
    for number in range(MAX_DISTINCT_ERRORS + 50):
        recorder.record("grpc", 1, f"error {number}")
    errors = recorder.errors()
    assert (errors[0].message, errors[0].count) == (OTHER_ERRORS, 50)
    assert len(errors) == MAX_DISTINCT_ERRORS + 1
