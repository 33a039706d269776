"""Tests for JUnit XML of every command: a failure is a failed case with a stable name."""

from collections.abc import Sequence
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from tests.loadtests.recorded_runs import open_load, recorded_run
from tpuserve_loadtests.judgement.comparison import ComparisonOutcome, judge_comparison
from tpuserve_loadtests.judgement.exit_codes import EXIT_EVIDENCE, EXIT_GATE, EXIT_GENERATOR, EXIT_INTERRUPTED
from tpuserve_loadtests.judgement.run import Rules, judge_run
from tpuserve_loadtests.judgement.search import Found, Outcome, Probe, Searched
from tpuserve_loadtests.judgement.soak import SoakOutcome, judge_soak
from tpuserve_loadtests.judgement.threshold import Threshold
from tpuserve_loadtests.measurement.measured import Segments
from tpuserve_loadtests.mlperf.report import mlperf_cases, mlperf_search_cases
from tpuserve_loadtests.mlperf.rules import MlperfOutcome, Scenario, judge_mlperf
from tpuserve_loadtests.monitoring.server_side import Seen
from tpuserve_loadtests.monitoring.watched import Watched
from tpuserve_loadtests.rendering.exports import junit_xml
from tpuserve_loadtests.rendering.report import Case, Page, Report
from tpuserve_loadtests.reports.rollout import rollout_cases
from tpuserve_loadtests.reports.search import search_cases
from tpuserve_loadtests.reports.soak import soak_headline
from tpuserve_loadtests.reports.sweep import sweep_cases
from tpuserve_loadtests.rollout.procedure import Step, StepState

SLO = Threshold.parse("p99<=20ms")


def no_page() -> Page:
    raise AssertionError("JUnit's XML needs no page")


def failed(cases: Sequence[Case]) -> list[str]:
    return [case.name for case in cases if case.problem or case.error]


def test_what_xml_cannot_hold_is_replaced() -> None:
    cases = [Case("a", "\x00\x1b[31m<&>\ud800 \ufffe\nmore"), Case("b", skipped="not\x07yet"), Case("c", seconds=1.5)]
    report = Report("loadtest compare", "m", 0, cases, dict, no_page, statement="it\x00 ended")
    suite = ElementTree.fromstring(junit_xml(report))
    assert (suite.get("name"), suite.get("tests"), suite.get("failures"), suite.get("skipped")) == (
        "loadtest compare m",
        "3",
        "1",
        "1",
    )
    failure, skipped = suite.find("testcase/failure"), suite.find("testcase/skipped")
    assert failure is not None
    assert skipped is not None
    assert failure.get("message") == "\ufffd\ufffd[31m<&>\ufffd \ufffd"
    assert failure.text == f"{failure.get('message')}\nmore"
    assert skipped.get("message") == "not\ufffdyet"
    assert [case.get("time") for case in suite.iter("testcase")] == [None, None, "1.500"]
    assert suite.findtext("system-out") == "it\ufffd ended"


def comparison(
    slower: float, rounds: int = 4, *, seconds: float = 8.0, fail_if_unclear: bool = True, failures: int = 0
) -> ComparisonOutcome:
    load = open_load(100, seconds)
    pairs = [
        (
            recorded_run(load, 4, seed=2 * number, failures={"gone": failures}),
            recorded_run(load, 4 * slower, seed=2 * number + 1),
        )
        for number in range(rounds)
    ]
    return judge_comparison(("stable", "canary"), pairs, Rules(fail_if_unclear=fail_if_unclear))


def test_a_figure_of_b_that_is_worse_is_a_case_that_failed() -> None:
    report = comparison(1.5)
    cases = {case.name: case for case in report.cases}
    assert report.exit_code == EXIT_GATE
    assert "p50 of B is not worse" in failed(report.cases)
    assert cases["p50 of B is not worse"].problem.startswith("p50 of B is worse: A 3.97 ms, B 5.96 ms, ratio 1.502 (")
    assert cases["p99.9 of B is not worse"].skipped == "too few requests"
    of_lines = [f"{line}.{name} of B is not worse" for line in ("grpc", "rest") for name in ("mean", "p50")]
    assert set(of_lines) < set(cases)
    assert [name for name in cases if "grpc." not in name and "rest." not in name] == [
        "the load ran to its end",
        "there are enough rounds",
        "requests are answered",
        "the load generator is not the limit",
        "mean of B is not worse",
        "p50 of B is not worse",
        "p90 of B is not worse",
        "p99 of B is not worse",
        "p99.9 of B is not worse",
        "distribution of B is not worse",
        "failures of B are not worse",
    ]
    assert {case.name for case in comparison(1.0, rounds=2).cases} < set(cases)


def test_a_figure_that_is_unclear_fails_only_where_it_must_be_told() -> None:
    strict, noted = comparison(1.0, seconds=1.0), comparison(1.0, seconds=1.0, fail_if_unclear=False)
    assert strict.exit_code == EXIT_EVIDENCE
    assert "p99 of B is not worse" in failed(strict.cases)
    assert noted.exit_code == 0
    assert failed(noted.cases) == []
    assert {case.name for case in noted.cases if case.skipped} == {*failed(strict.cases), "p99.9 of B is not worse"}


def test_too_few_rounds_and_failures_are_cases() -> None:
    assert failed(comparison(1.0, rounds=2).cases) == ["there are enough rounds"]
    assert failed(comparison(1.0, failures=3, fail_if_unclear=False).cases) == ["requests are answered"]


def test_a_search_fails_in_what_ended_it() -> None:
    best, ceiling = (Probe(rate, outcome, "why") for rate, outcome in ((100, Outcome.HOLDS), (120, Outcome.FAILS)))

    def of(found: Found | None, problem: str = "", exit_code: int = 0) -> list[Case]:
        return search_cases(Searched(found, (), None, problem, exit_code), [SLO])

    assert failed(of(Found(best, ceiling))) == []
    assert failed(of(Found(None, ceiling))) == ["a rate keeps p99<=20ms"]
    assert failed(of(None, "interrupted", EXIT_INTERRUPTED)) == ["the search ended"]
    assert failed(of(None, "late", EXIT_GENERATOR)) == ["the load generator is not the limit"]
    names = [case.name for case in of(None, "interrupted", EXIT_INTERRUPTED)]
    assert names == [case.name for case in of(Found(best, ceiling))]


def scenario(seconds: float, *, limits: tuple[str, ...] = (), stopped: str = "", quick: bool = False) -> list[Case]:
    measured = replace(recorded_run(open_load(60, seconds)), stopped=stopped)
    result = judge_mlperf(Scenario.OFFLINE, measured, 8, limits=limits)
    return mlperf_cases(MlperfOutcome(result, Watched((measured,), (), None, (), ""), quick))


def test_a_scenario_of_mlperf_is_a_case_by_its_verdict() -> None:
    assert [case.name for case in scenario(600)] == [
        "the load generator is not the limit",
        "the load ran to its end",
        "Offline is VALID",
    ]
    assert failed(scenario(600)) == []
    short = scenario(8)
    assert failed(short) == ["Offline is VALID"]
    assert short[-1].problem.startswith(
        "INVALID: Min duration satisfied: no, 8.0 s of 600 s\nMin queries satisfied: no, "
    )
    assert failed(scenario(400)) == ["Offline is VALID"]
    assert failed(scenario(400, quick=True)) == []
    limited = scenario(600, limits=("it used 0.99 cores",))
    assert failed(limited) == ["the load generator is not the limit", "Offline is VALID"]
    assert limited[0].problem == "it used 0.99 cores"
    assert failed(scenario(600, stopped="interrupted")) == ["the load ran to its end"]


def test_a_search_that_finds_no_rate_for_mlperf_fails_in_what_ended_it() -> None:
    ceiling = Probe(120, Outcome.FAILS, "why")

    def of(found: Found | None, problem: str = "", exit_code: int = 0) -> list[Case]:
        tries = [(ceiling, Watched.of(recorded_run(open_load(120)), Seen()))]
        return mlperf_search_cases(Searched(found, tries, None, problem, exit_code))

    none = of(Found(None, ceiling))
    assert failed(none) == ["Server is VALID"]
    assert none[-1].problem == "INVALID: No rate holds: the lowest was 120.0/s (why)."
    assert failed(of(None, "interrupted", EXIT_INTERRUPTED)) == ["the load ran to its end"]
    assert failed(of(None, "late", EXIT_GENERATOR)) == ["the load generator is not the limit"]


def step(name: str, state: StepState) -> Step:
    return Step(name, state, "as told", 0.0, 2.5)


def test_each_step_of_a_rollout_is_a_case_whether_it_was_reached_or_not() -> None:
    planned = ["parity", "shadow", "label canary", "label stable", "soak"]
    refused = rollout_cases(planned, [step("parity", StepState.PASSED), step("shadow", StepState.FAILED)])
    assert [case.name for case in refused] == planned
    assert failed(refused) == ["shadow"]
    assert [case.name for case in refused if case.skipped] == ["label canary", "label stable", "soak"]
    back = [step(name, StepState.DONE) for name in ("label canary", "label stable")]
    back += [step("interrupted", StepState.FAILED), step("labels back", StepState.DONE)]
    assert failed(rollout_cases(planned, back)) == ["interrupted"]
    assert [case.name for case in rollout_cases(planned, back)] == [*planned, "interrupted", "labels back"]
    plan = rollout_cases(planned, [step(name, StepState.PLANNED) for name in planned])
    assert [case.skipped for case in plan] == ["planned: as told"] * 5


def soak(segments: int, growth: float, *, swing: float = 0.0, fail_if_unclear: bool = True) -> SoakOutcome:
    """Return a soak with a server whose memory grows by a share per segment, and swings by up to six times another."""
    done = Segments()
    for number in range(segments):
        done.add(recorded_run(open_load(20), seed=number), 4e8 * (1 + growth * number + swing * (number * 5 % 7)))
    assert done.total is not None
    run = judge_run(done.total, Rules((Threshold.parse("max>10s"),)), model="digits", rows=1)
    return judge_soak(run, done, segments, Rules(least_effect=0.5, fail_if_unclear=fail_if_unclear))


def test_what_drifts_is_a_case_that_failed() -> None:
    report = soak(24, 0.02)
    assert report.exit_code == EXIT_GATE
    assert failed(report.cases) == ["server's memory does not drift"]
    problem = next(case.problem for case in report.cases if case.problem)
    assert problem.startswith("server's memory is drifting: +")
    assert {"max <= 10 s", "p99 does not drift", "it is long enough to tell"} < {case.name for case in report.cases}
    assert failed(soak(24, 0.0).cases) == []


def test_a_soak_that_is_unclear_fails_only_where_it_must_be_told() -> None:
    strict, noted = soak(24, 0.0, swing=0.1), soak(24, 0.0, swing=0.1, fail_if_unclear=False)
    assert (strict.verdict, noted.verdict) == ("unclear", "unclear")
    assert (strict.exit_code, noted.exit_code) == (EXIT_EVIDENCE, 0)
    assert failed(strict.cases) == ["server's memory does not drift"]
    assert failed(noted.cases) == []
    assert [case.name for case in noted.cases if case.skipped] == failed(strict.cases)
    assert soak_headline(noted).kind == soak_headline(strict).kind == "warn"


def test_a_soak_that_was_too_short_says_so() -> None:
    report = soak(3, 0.0)
    assert report.exit_code == EXIT_EVIDENCE
    assert failed(report.cases) == ["it is long enough to tell"]
    assert all(case.skipped for case in report.cases if case.name.endswith("does not drift"))


@pytest.mark.parametrize("failures", [0, 2])
def test_each_step_of_a_sweep_has_its_cases(failures: int) -> None:
    reports = [
        judge_run(recorded_run(open_load(rate), failures={"gone": failures}), model="m", rows=1) for rate in (100, 200)
    ]
    wanted = ["100/s: requests are answered", "200/s: requests are answered"] if failures else []
    assert failed(sweep_cases(reports)) == wanted
