import json
from xml.etree import ElementTree

import pytest

from tpuserve_loadtests.arrivals.load import Load, RateProfile
from tpuserve_loadtests.judgement.exit_codes import EXIT_GATE, EXIT_GENERATOR
from tpuserve_loadtests.judgement.run import judge_generator, judge_run
from tpuserve_loadtests.judgement.search import Answer, Sample, judge
from tpuserve_loadtests.judgement.threshold import Hopeless, Outage, Threshold, gate_results, limits_us
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.measurement.recorder import Counts, Recorder
from tpuserve_loadtests.rendering.exports import junit_xml
from tpuserve_loadtests.reports.run import run_report

OPEN = Load(10, 1, profile=RateProfile.parse("100", 10), limits_us=(20_000.0,))
CLOSED = Load(10, 1, users=4)


def measured(*latencies_ms: float, failures: int = 0, load: Load = OPEN, cores: float = 0.2) -> Measured:
    recorder = Recorder(("grpc",), load)
    for latency_ms in latencies_ms:
        recorder.record("grpc", 2.0, 2.0 + latency_ms / 1000, None)
    for _ in range(failures):
        recorder.record("grpc", 2.0, 2.1, "UNAVAILABLE: gone")
    return Measured(load, recorder, load.seconds, (cores,))


def gates(*texts: str) -> tuple[Threshold, ...]:
    return tuple(Threshold.parse(text) for text in texts)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("p99>20ms", 20),
        ("p99.9 >= 1.5s", 1500),
        ("p50<=250us", 0.25),
        ("error_rate>0.1%", 0.001),
        ("error_rate>0.5", 0.5),
        ("rate<500", 500),
        ("rate<500/s", 500),
        ("max>1s", 1000),
        ("mean>5ms", 5),
    ],
)
def test_thresholds_are_read(text: str, value: float) -> None:
    assert Threshold.parse(text).value == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("p99", "is not a threshold"),
        ("p100>1ms", "is not a threshold"),
        ("speed>1", "is not a threshold"),
        ("p99>20", "p99 needs us or ms or s"),
        ("rate<5ms", "rate needs no unit or /s"),
        ("error_rate>1s", "error_rate needs no unit or %"),
        ("p99=20ms", "is not a threshold"),
    ],
)
def test_what_is_no_threshold_is_refused_with_what_one_is(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Threshold.parse(text)


def test_gates_fail_if_they_are_true() -> None:
    run = measured(*[10.0] * 98, 50.0, failures=1)
    results = gate_results(gates("p99>20ms", "p90>20ms", "max>45ms", "error_rate>0.5%", "rate<5", "mean<9ms"), run)
    assert [result.failed for result in results] == [True, False, True, True, False, False]
    assert str(results[0]).startswith("p99>20ms: failed, 50.")


def test_a_gate_without_a_figure_fails() -> None:
    results = gate_results(gates("p99>20ms", "rate<0"), measured(failures=3))
    assert [str(result) for result in results] == ["p99>20ms: failed, no responses", "rate<0: passed, 0.0/s"]


def test_failures_are_judged_by_a_gate_on_them_where_there_is_one() -> None:
    run = measured(*[1.0] * 999, failures=1)
    assert judge_run(run, model="m", rows=1).exit_code == 1
    assert judge_run(run, model="m", rows=1, gates=gates("p99>20ms")).exit_code == 1
    assert judge_run(run, model="m", rows=1, gates=gates("error_rate>0.5%")).exit_code == 0
    assert judge_run(run, model="m", rows=1, gates=gates("error_rate>0.05%")).exit_code == EXIT_GATE
    assert judge_run(measured(), model="m", rows=1, gates=gates("error_rate>2%")).exit_code == EXIT_GATE


def test_a_generator_at_its_limit_is_told_before_gates() -> None:
    busy = measured(30.0, cores=0.95)
    report = judge_run(busy, model="m", rows=1, gates=gates("p99>20ms"))
    assert report.exit_code == EXIT_GENERATOR
    assert "0.95 of one core" in report.notes[0]
    assert judge_run(busy, model="m", rows=1, gates=gates("p99>20ms"), strict=False).exit_code == EXIT_GATE


def test_a_generator_that_sends_late_or_drops_is_not_trusted() -> None:
    late, tolerable, dropping = (measured(*[10.0] * 100) for _ in range(3))
    for number in range(100):
        late.recorder.record_lag(2.0, 0.004 if number > 90 else 0.0001)
        tolerable.recorder.record_lag(2.0, 0.0009)
    dropping.recorder.dropped = 3
    (limit,) = judge_generator(late).limits
    assert limit.startswith("1 % of requests were sent more than 4.0 ms late, although it used only 0.20 cores")
    assert judge_generator(tolerable).trusted
    assert judge_generator(dropping).limits == ("3 arrivals were dropped",)


def test_slow_answers_excuse_a_generator_that_is_a_little_late() -> None:
    slow = measured(*[500.0] * 100)
    for _ in range(100):
        slow.recorder.record_lag(2.0, 0.030)
    assert judge_generator(slow).trusted


def test_a_generator_that_is_late_by_less_than_a_limit_can_see_is_trusted() -> None:
    fast = measured(*[2.0] * 100)
    for _ in range(100):
        fast.recorder.record_lag(2.0, 0.003)
    assert not judge_generator(fast).trusted
    assert judge_generator(fast, gates("p99>40ms", "rate<5")).trusted
    assert not judge_generator(fast, gates("p99>40ms", "p50>20ms")).trusted


def test_an_open_run_is_hopeless_once_too_many_are_late() -> None:
    found = gates("p99>20ms", "rate<50")
    hopeless = Hopeless(found, OPEN)
    assert limits_us(found) == pytest.approx((20_020.0,))
    assert hopeless.why(0.1, Counts(500, 0, (11,))) == ""
    assert hopeless.why(0.1, Counts(500, 0, (12,))) == "stopped early: p99>20ms is certain after 12 late responses"


def test_failures_make_a_run_hopeless() -> None:
    hopeless = Hopeless(gates("error_rate>1%"), OPEN)
    assert hopeless.why(5, Counts(500, 11)) == ""
    assert "after 12 failures" in hopeless.why(5, Counts(500, 12))


def test_a_part_of_a_load_is_hopeless_for_what_came_before_it() -> None:
    further = Hopeless(gates("p99>20ms"), OPEN).further(5, Counts(500, 0, (6,)))
    assert further(0.1, Counts(10, 0, (5,))) == ""
    assert further(0.1, Counts(10, 0, (6,))) == "stopped early: p99>20ms is certain after 12 late responses"
    # The last part has just sent its first requests, so most of the load is over.
    last = Hopeless(gates("p90>20ms"), CLOSED).further(CLOSED.total_s - 1, Counts(1000, 0, (250,)))
    assert last(0.1, Counts(10, 0, (0,))) != ""


def test_an_outage_is_a_time_in_which_every_request_failed() -> None:
    outage = Outage(2.0)
    assert outage.why(3.0, Counts(0, 0)) == ""  # the warm-up
    assert outage.why(4.0, Counts(100, 0)) == ""
    assert outage.why(5.5, Counts(110, 10)) == ""
    assert outage.why(7.5, Counts(131, 30)) == ""  # one response arrived
    assert outage.why(9.0, Counts(131, 30)) == ""  # no request was sent
    assert outage.why(10.5, Counts(132, 31)) == ""
    assert outage.why(11.0, Counts(133, 32)) == "stopped early: every request failed for 2 s"


def test_a_closed_run_is_given_time_before_it_is_hopeless() -> None:
    hopeless = Hopeless(gates("p90>20ms"), CLOSED)
    assert hopeless.why(2, Counts(100, 0, (100,))) == ""
    # After a third, the estimate is at most 600 requests, of which 60 may be late.
    assert hopeless.why(4.4, Counts(100, 0, (55,))) == ""
    assert hopeless.why(4.4, Counts(100, 0, (65,))) != ""


@pytest.mark.parametrize(
    ("sample", "answer"),
    [
        (Sample(458, 0), Answer.UNCLEAR),
        (Sample(459, 0), Answer.KEPT),
        (Sample(12_571, 100), Answer.KEPT),
        (Sample(12_571, 101), Answer.UNCLEAR),
        (Sample(12_571, 126), Answer.UNCLEAR),
        (Sample(12_571, 170), Answer.MISSED),
        (Sample(20, 20), Answer.MISSED),
    ],
)
def test_an_objective_is_kept_missed_or_neither(sample: Sample, answer: Answer) -> None:
    assert judge(sample, 99)[0] is answer


def test_reports_for_programs_say_what_the_table_says() -> None:
    outcome = judge_run(measured(*[10.0] * 600, failures=2), model="m", rows=1, gates=gates("p99>5ms", "rate<1"))
    report = run_report(outcome, {})
    document = json.loads(json.dumps(report.document()))
    assert (document["exit_code"], document["ok"]) == (EXIT_GATE, False)
    assert document["total"]["p99_bound_ms"] == pytest.approx(10, rel=1e-3)
    assert [gate["failed"] for gate in document["gates"]] == [True, False]
    suite = ElementTree.fromstring(junit_xml(report))
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["requests are answered", "p99>5ms"]
    assert (suite.get("tests"), suite.get("failures")) == ("4", "2")
