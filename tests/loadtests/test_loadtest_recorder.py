from dataclasses import replace

import msgpack  # type: ignore[import-untyped]  # ships no annotations
import pytest

from tpuserve_loadtests.arrivals.load import Load, RateProfile
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.measurement.recorder import MAX_DISTINCT_ERRORS, OTHER_ERRORS, Recorder, Tally

LOAD = Load(seconds=10, warm_up_s=2, users=4, limits_us=(5_000.0,))


def measured(recorder: Recorder, load: Load = LOAD) -> Measured:
    return Measured(load, recorder, load.seconds, (0.1,))


def test_sub_millisecond_latencies_are_not_rounded_away() -> None:
    tally = Tally()
    for latency_us in (412, 413, 414):
        tally.record_success(latency_us)
    assert tally.percentile_ms(50) == 0.413


def test_no_percentile_exceeds_the_largest_latency() -> None:
    tally = Tally()
    tally.record_success(1_000_001)  # shares a bucket with larger values
    summary = tally.summary("grpc", rate_per_s=1)
    assert summary.p99_ms == summary.max_ms == 1000.001


def test_failures_count_as_late_and_not_towards_the_rate() -> None:
    recorder = Recorder(("grpc",), LOAD)
    for _ in range(10):
        recorder.record("grpc", 3.0, 3.005, None)
    for _ in range(90):
        recorder.record("grpc", 3.0, 3.0, "UNAVAILABLE: gone")
    (summary,) = measured(recorder).lines()
    assert (summary.requests, summary.failures, summary.rate_per_s) == (100, 90, 1)
    assert summary.p50_ms is None
    assert measured(recorder).total.percentile_ms(10) == pytest.approx(5, rel=1e-3)
    assert measured(recorder).total.percentile_ms(10.1) is None
    assert measured(recorder).error_rate == 0.9


def test_nothing_but_failures_has_no_latency() -> None:
    recorder = Recorder(("rest",), LOAD)
    recorder.record("rest", 3.0, 3.1, "HTTP 503: no")
    (summary,) = measured(recorder).lines()
    assert (summary.p50_ms, summary.p99_ms, summary.max_ms, summary.rate_per_s) == (None, None, None, 0)


def test_total_has_the_percentiles_of_all_requests_together() -> None:
    recorder = Recorder(("grpc", "rest", "silent"), LOAD)
    for latency_ms in range(1, 91):
        recorder.record("grpc", 3.0, 3 + latency_ms / 1000, None)
    for latency_ms in range(91, 101):
        recorder.record("rest", 3.0, 3 + latency_ms / 1000, None)
    total = measured(recorder).total
    assert total.requests == 100
    assert measured(recorder).rate_per_s == 10
    assert total.percentile_ms(90) == pytest.approx(90, rel=2e-3)
    assert total.percentile_ms(99) == pytest.approx(99, rel=2e-3)


def test_what_was_due_in_the_warm_up_has_no_latency_and_its_late_answer_counts_towards_the_rate() -> None:
    recorder = Recorder(("grpc",), LOAD)
    recorder.record("grpc", 1.0, 1.5, None)
    recorder.record("grpc", 1.9, 2.5, None)
    recorder.record_lag(1.0, 0.5)
    assert recorder.counts().requests == recorder.tally().requests == 0
    assert recorder.warm_up_requests == 2
    assert measured(recorder).rate_per_s == 0.1
    assert recorder.lag.count == 0


def test_an_answer_after_the_end_counts_as_a_latency_but_not_towards_the_rate() -> None:
    recorder = Recorder(("grpc",), LOAD)
    recorder.record("grpc", 11.9, 13.0, None)
    assert measured(recorder).rate_per_s == 0
    assert measured(recorder).total.percentile_ms(50) == pytest.approx(1100, rel=1e-3)


def test_late_answers_are_counted_as_they_come() -> None:
    recorder = Recorder(("grpc",), LOAD)
    for latency_s in (0.001, 0.004, 0.006, 1.0):
        recorder.record("grpc", 3.0, 3 + latency_s, None)
    assert recorder.counts().late == (2,)


def test_errors_come_with_counts_the_commonest_first() -> None:
    recorder = Recorder(("grpc", "rest"), LOAD)
    for protocol, error in [("grpc", "a"), ("rest", "b"), ("rest", "b"), ("rest", "a")]:
        recorder.record(protocol, 3.0, 3.1, error)
    errors = [(error.line, error.message, error.count) for error in recorder.errors()]
    assert errors[0] == ("rest", "b", 2)
    assert sorted(errors[1:]) == [("grpc", "a", 1), ("rest", "a", 1)]


def test_endless_distinct_errors_do_not_grow_memory() -> None:
    recorder = Recorder(("grpc",), LOAD)
    for number in range(MAX_DISTINCT_ERRORS + 50):
        recorder.record("grpc", 3.0, 3.1, f"error {number}")
    errors = recorder.errors()
    assert (errors[0].message, errors[0].count) == (OTHER_ERRORS, 50)
    assert len(errors) == MAX_DISTINCT_ERRORS + 1


def test_what_processes_recorded_merges_into_what_one_would_have() -> None:
    whole, merged = Recorder(("grpc", "rest"), LOAD), Recorder(("grpc", "rest"), LOAD)
    for process in range(3):
        part = Recorder(("grpc", "rest"), LOAD)
        for number in range(40):
            due_s, latency_s = 0.3 * number, 0.002 * (number + process)
            error = "HTTP 503: no" if number % 10 == 9 else None
            for recorder in (whole, part):
                recorder.record(("grpc", "rest")[number % 2], due_s, due_s + latency_s, error)
                recorder.record_lag(due_s, latency_s / 10)
                recorder.dropped += number == 5
        # The encoding between machines.
        merged.add_wire(msgpack.unpackb(msgpack.packb(part.to_wire()), strict_map_key=False))
    assert merged.to_wire() == whole.to_wire()
    assert measured(merged).lines() == measured(whole).lines()
    assert merged.dropped == 3


@pytest.mark.parametrize(("slowdown", "stable"), [(1.0, True), (1.02, True), (1.2, False)])
def test_a_run_is_stable_if_its_end_is(slowdown: float, stable: bool) -> None:
    recorder = Recorder(("grpc",), LOAD)
    for number in range(1000):
        latency_s = 0.01 * slowdown ** (number // 200)
        recorder.record("grpc", 2 + number / 100, 2 + number / 100 + latency_s, None)
    found = measured(recorder)
    assert found.stable is stable
    ramp = replace(LOAD, users=0, profile=RateProfile.parse("50..200", LOAD.seconds))
    assert replace(found, load=ramp).stable is None  # it is to change


def test_a_condensed_run_has_the_same_totals_in_one_window() -> None:
    recorder = Recorder(("grpc", "rest"), LOAD)
    for number in range(40):
        recorder.record(("grpc", "rest")[number % 2], 0.3 * number, 0.31 * number, "no" if number == 20 else None)
    run = measured(recorder)
    small = run.condensed()
    assert len(small.recorder.windows) == 1
    assert (small.lines(), small.rate_per_s) == (run.lines(), run.rate_per_s)
    assert small.recorder.errors() == run.recorder.errors()
