"""Tests for MLPerf Inference's rules on simulated runs, and for LoadGen's published figures."""

import numpy as np
import pytest

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.measurement.recorder import Recorder
from tpuserve_loadtests.mlperf.rules import RULES, Result, Scenario, discarded_queries, estimate_ns, judge_mlperf


def run(latencies_ms: list[float], seconds: float = 600.0, failures: int = 0) -> Measured:
    """Return a run with queries at equal intervals."""
    load = Load(seconds, users=1)
    recorder = Recorder(("grpc",), load)
    for number, latency_ms in enumerate(latencies_ms):
        due_s = seconds * number / len(latencies_ms)
        recorder.record("grpc", due_s, due_s + latency_ms / 1000, "failed" if number < failures else None)
    return Measured(load, recorder, seconds, (0.1,))


def broken(result: Result) -> set[str]:
    return {constraint.name for constraint in result.constraints if not constraint.satisfied}


@pytest.mark.parametrize(
    ("queries", "percentile", "discarded"),
    # "Would discard … highest latency queries" in LoadGen's logs of submissions.
    [(2048, 90, 172), (2116, 90, 178), (2145, 90, 181), (7469, 90, 685), (1_179_125, 99, 11_539)],
)
def test_as_many_of_the_slowest_are_left_out_as_by_loadgen(queries: int, percentile: float, discarded: int) -> None:
    assert discarded_queries(queries, percentile) == discarded


def test_queries_that_are_needed_are_those_of_loadgen() -> None:
    # "Processed at least 64 queries", and 662 in its configuration.
    assert RULES[Scenario.SINGLE_STREAM].min_queries == 64
    assert RULES[Scenario.MULTI_STREAM].min_queries == 662
    assert discarded_queries(63, 90) is None
    assert discarded_queries(64, 90) == 0


def test_the_estimate_is_the_slowest_query_that_is_left() -> None:
    # 100 queries: 3 may be late, and 2 are discarded
    measured = run([float(n) for n in range(1, 101)])
    assert discarded_queries(100, 90) == 2
    assert estimate_ns(measured, 90) == pytest.approx(98e6, rel=1e-3)


def test_a_single_stream_of_ten_minutes_is_valid_and_its_metric_is_the_estimate() -> None:
    measured = run([5.0] * 2048)
    result = judge_mlperf(Scenario.SINGLE_STREAM, measured, 1)
    assert result.valid
    assert result.metric == pytest.approx(5e6, rel=1e-3)


def test_too_short_a_run_is_invalid_for_that_alone() -> None:
    result = judge_mlperf(Scenario.SINGLE_STREAM, run([5.0] * 500, seconds=10), 1)
    assert not result.valid
    assert result.valid_but_for_duration
    assert broken(result) == {"Min duration satisfied"}


def test_too_few_queries_are_invalid() -> None:
    result = judge_mlperf(Scenario.MULTI_STREAM, run([5.0] * 661), 8)
    assert broken(result) == {"Min queries satisfied", "Early stopping satisfied"}
    assert result.metric is None
    assert judge_mlperf(Scenario.MULTI_STREAM, run([5.0] * 662), 8).valid


def test_a_server_may_be_late_as_often_as_early_stopping_allows() -> None:
    def of(late: int) -> Result:
        return judge_mlperf(Scenario.SERVER, run([20.0] * late + [5.0] * (12_571 - late)), 1, target_latency_ms=15)

    assert of(100).valid
    assert of(100).metric == pytest.approx(12_571 / 600)
    assert broken(of(101)) == {"Early stopping satisfied"}
    assert broken(of(200)) == {"Early stopping satisfied", "Performance constraints satisfied"}


def test_offline_counts_samples_and_needs_24576_of_them() -> None:
    result = judge_mlperf(Scenario.OFFLINE, run([5.0] * 768), 32)
    assert result.valid
    assert result.metric == pytest.approx(768 * 32 / 600, rel=0.01)
    assert broken(judge_mlperf(Scenario.OFFLINE, run([5.0] * 767), 32)) == {"Min queries satisfied"}


def test_failures_and_a_generator_that_was_the_limit_make_a_run_invalid() -> None:
    assert broken(judge_mlperf(Scenario.SINGLE_STREAM, run([5.0] * 2048, failures=1), 1)) == {"All queries answered"}
    limited = judge_mlperf(Scenario.SINGLE_STREAM, run([5.0] * 2048), 1, limits=("it used 0.99 cores",))
    assert broken(limited) == {"Load generator kept up"}


def test_nothing_answered_is_no_metric_and_no_crash() -> None:
    result = judge_mlperf(Scenario.SERVER, run([5.0] * 10, failures=10), 1, target_latency_ms=15)
    assert "Performance constraints satisfied" in broken(result)
    assert np.isfinite(result.metric or 0)
