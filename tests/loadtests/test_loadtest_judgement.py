import json
from xml.etree import ElementTree

import pytest

from tpuserve_loadtests.arrivals.load import Load, RateProfile
from tpuserve_loadtests.judgement.exit_codes import EXIT_EVIDENCE, EXIT_GATE, EXIT_GENERATOR
from tpuserve_loadtests.judgement.run import Rules, judge_generator, judge_run
from tpuserve_loadtests.judgement.search import Answer, Sample, judge
from tpuserve_loadtests.judgement.threshold import Hopeless, Lines, Outage, Threshold, limits_us
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
    results = Lines().results(gates("p99>20ms", "p90>20ms", "max>45ms", "error_rate>0.5%", "rate<5", "mean<9ms"), run)
    assert [result.failed for result in results] == [True, False, True, True, False, False]
    assert str(results[0]).startswith("failed: p99 50.")


def test_a_gate_without_a_figure_fails() -> None:
    results = Lines().results(gates("p99>20ms", "rate<0"), measured(failures=3))
    assert [str(result) for result in results] == [
        "failed: p99 unknown (no responses, or too many failures), fails if > 20 ms",
        "passed: rate 0.0/s, fails if < 0",
    ]


def test_failures_are_judged_by_a_gate_on_them_where_there_is_one() -> None:
    run = measured(*[1.0] * 999, failures=1)
    assert judge_run(run, model="m", rows=1).exit_code == 1
    assert judge_run(run, Rules(gates("p99>20ms")), model="m", rows=1).exit_code == 1
    assert judge_run(run, Rules(gates("error_rate>0.5%")), model="m", rows=1).exit_code == 0
    assert judge_run(run, Rules(gates("error_rate>0.05%")), model="m", rows=1).exit_code == EXIT_GATE
    assert judge_run(measured(), Rules(gates("error_rate>2%")), model="m", rows=1).exit_code == EXIT_GATE


def test_a_generator_at_its_limit_is_told_before_gates() -> None:
    busy = measured(30.0, cores=0.95)
    report = judge_run(busy, Rules(gates("p99>20ms")), model="m", rows=1)
    assert report.exit_code == EXIT_GENERATOR
    assert "0.95 of one core" in report.notes[0]
    assert judge_run(busy, Rules(gates("p99>20ms"), strict=False), model="m", rows=1).exit_code == EXIT_GATE


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
    outcome = judge_run(measured(*[10.0] * 2000, failures=2), Rules(gates("p99>5ms", "rate<1")), model="m", rows=1)
    report = run_report(outcome, {})
    document = json.loads(json.dumps(report.document()))
    assert (document["exit_code"], document["ok"]) == (EXIT_GATE, False)
    assert document["total"]["p99_bound_ms"] == pytest.approx(10, rel=1e-3)
    assert [gate["failed"] for gate in document["gates"]] == [True, False]
    suite = ElementTree.fromstring(junit_xml(report))
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["requests are answered", "p99 <= 5 ms"]
    assert (suite.get("tests"), suite.get("failures")) == ("5", "2")


@pytest.mark.parametrize(
    ("latencies_ms", "failures", "gate", "exit_code", "words"),
    [
        (
            [10.0] * 20,
            0,
            "p99>20ms",
            EXIT_EVIDENCE,
            "20 requests can show no bound with 99 % confidence, and about 459",
        ),
        ([10.0] * 459, 0, "p99>20ms", 0, ""),
        ([10.0] * 990 + [50.0] * 9, 0, "p99>20ms", EXIT_EVIDENCE, "999 requests can show at most 50.0"),
        ([10.0] * 980, 20, "p99>20ms", EXIT_GATE, ""),  # failures count as late
        ([10.0] * 200, 0, "error_rate>0.1%", EXIT_EVIDENCE, "200 requests can show at most 2.3 % with 99 % confidence"),
        ([10.0] * 1000, 0, "error_rate>1%", 0, ""),
        ([10.0] * 2, 0, "mean>20ms", 0, ""),
    ],
)
def test_a_gate_needs_a_sample_that_can_prove_it(
    latencies_ms: list[float], failures: int, gate: str, exit_code: int, words: str
) -> None:
    run = measured(*latencies_ms, failures=failures)
    outcome = judge_run(run, Rules(gates(gate, "error_rate>50%")), model="m", rows=1)
    assert (outcome.exit_code, outcome.gates[0].shortfall.startswith(words)) == (exit_code, True)
    (suite,) = [case for case in outcome.cases if case.name.startswith(gate.partition(">")[0])][:1]
    assert bool(suite.error) == (exit_code == EXIT_EVIDENCE)


def by_line(**latencies_ms: list[float]) -> Measured:
    """Return a run with these latencies of each line. A negative latency is a failed request."""
    recorder = Recorder(tuple(latencies_ms), OPEN)
    for line, found in latencies_ms.items():
        for latency_ms in found:
            recorder.record(line, 2.0, 2.0 + abs(latency_ms) / 1000, "gone" if latency_ms < 0 else None)
    return Measured(OPEN, recorder, OPEN.seconds, (0.1,))


@pytest.mark.parametrize(
    ("rare_ms", "gate", "named", "line"),
    [
        ([-1.0] * 8, "error_rate>1%", True, "rare"),  # 1 of 200 requests
        ([2000.0] * 8, "p99>20ms", True, "rare"),
        ([2000.0] * 8, "p99>20ms", False, ""),  # below 1 %
        ([2000.0] * 20, "p99>20ms", False, "rare"),
        ([10.0] * 19 + [30.0], "p99>20ms", True, ""),  # may be chance
        ([2000.0] * 2 + [2001.0] * 8, "mean>25ms", True, "rare"),
    ],
)
def test_a_gate_on_all_requests_fails_with_a_line_that_surely_breaks_it(
    rare_ms: list[float], gate: str, named: bool, line: str
) -> None:
    run = by_line(common=[10.0] * 1592 if len(rare_ms) < 15 else [10.0] * 1980, rare=rare_ms)
    lines = Lines(named={"rare": ("rare",)} if named else {})
    (result,) = lines.results(gates(gate), run)
    assert (result.failed, result.line) == (bool(line), line)
    if line:
        assert f"{result.gate.metric} of rare " in str(result)


def test_gates_select_lines_by_their_words() -> None:
    run = by_line(**{"small gRPC": [10.0] * 500, "big gRPC": [30.0] * 500})
    lines = Lines({name: frozenset({name.partition(" ")[0], "grpc"}) for name in ("small gRPC", "big gRPC")})
    selecting = gates("small.p99>20ms", "big gRPC.p99>20ms", "grpc.p99.9<31ms", "*.p99>20ms", "*.p90>40ms")
    lines.check(selecting)
    assert [str(result) for result in lines.results(selecting, run)] == [
        "passed: small.p99 10.00 ms, fails if > 20 ms",
        "failed: big gRPC.p99 30.00 ms, fails if > 20 ms",
        "failed: grpc.p99.9 30.00 ms, fails if < 31 ms",
        "failed: *.p99 of big gRPC 30.00 ms, fails if > 20 ms",
        "passed: *.p90 of big gRPC 30.00 ms, fails if > 40 ms",
    ]
    with pytest.raises(ValueError, match=r"huge.p99>1ms selects no line. The lines are: small gRPC, big gRPC"):
        lines.check(gates("huge.p99>1ms"))


def test_each_step_of_a_rate_is_a_line() -> None:
    load = Load(10, 0, profile=RateProfile.parse("100,200", 10))
    recorder = Recorder(("grpc",), load)
    for number in range(1500):
        due_s = number / 100 if number < 500 else 5 + (number - 500) / 200
        recorder.record("grpc", due_s, due_s + (0.01 if number < 500 else 0.03), None)
    run = Measured(load, recorder, 10, (0.1,))
    assert [(step.name, step.tally.requests) for step in run.steps()] == [("100/s", 500), ("200/s", 1000)]
    results = Lines().results(gates("100/s.p99>20ms", "200/s.p99>20ms", "p25>20ms"), run)
    assert [result.failed for result in results] == [False, True, True]
    assert results[-1].line == "200/s"


def test_the_goodput_counts_the_responses_within_the_limit_of_a_percentile() -> None:
    run = measured(*[10.0] * 600, *[30.0] * 300, failures=100)
    _, goodput = Lines().results(gates("p50>20ms", "goodput<61/s"), run)
    assert (goodput.figure, goodput.failed) == (60.0, True)


def test_a_slow_start_is_reported_and_does_not_count_in_latencies() -> None:
    recorder = Recorder(("grpc",), OPEN)
    for number in range(2000):
        is_start = number < 400
        latency_s = (0.05 if is_start else 0.005) * (1 + number % 7 / 50)
        due_s = 1 + number / 200
        recorder.record("grpc", due_s, due_s + latency_s, "gone" if number == 0 else None)
    run = Measured(OPEN, recorder, OPEN.seconds, (0.1,))
    assert run.slow_start_s == pytest.approx(2)
    outcome = judge_run(run, Rules(gates("p99>20ms", "error_rate>0.01%")), model="m", rows=1)
    assert [result.failed for result in outcome.gates] == [False, True]  # the failure at the start counts
    assert outcome.notes[0].startswith("the first 2 s of 10 s differ (mean 5")
    assert run_report(outcome, {}).document()["slow_start_s"] == pytest.approx(2)
