"""Tests for runs that are repeated until a figure settles."""

import io
import json
import re
from collections.abc import Iterator, Sequence

import pytest
from rich.console import Console

from tests.loadtests.doubling_server import MODEL, UNRECORDED, Doubling, serving
from tests.loadtests.recorded_runs import open_load, recorded_run
from tests.support import forked_command
from tpuserve_loadtests.judgement.exit_codes import EXIT_EVIDENCE, EXIT_FAILED, EXIT_GATE
from tpuserve_loadtests.judgement.repetition import RepetitionOutcome, Settling, judge_repetition
from tpuserve_loadtests.judgement.run import Rules, judge_run
from tpuserve_loadtests.judgement.threshold import Threshold
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.rendering.exports import junit_xml
from tpuserve_loadtests.rendering.page import render_page
from tpuserve_loadtests.rendering.terminal import print_report
from tpuserve_loadtests.reports.repetition import repetition_report

QUIET = ("--generator-limit", "note", "--server-metrics", "off", "--warm-up", "0")


@pytest.fixture
def server() -> Iterator[Doubling]:
    with serving(Doubling()) as model:
        yield model


def run(median_ms: float, seed: int, failures: int = 0) -> Measured:
    return recorded_run(open_load(100), median_ms, seed=seed, failures={"gone": failures} if failures else None)


def outcome(
    medians_ms: Sequence[float], *gates: str, within: float = 0.05, failures: int = 0, figure: str = "p50"
) -> RepetitionOutcome:
    parsed = tuple(Threshold.parse(gate) for gate in gates)
    runs = [
        judge_run(run(median_ms, seed, failures), Rules(parsed), model="digits", rows=1).condensed()
        for seed, median_ms in enumerate(medians_ms)
    ]
    return judge_repetition(runs, parsed, Settling(figure, within), len(medians_ms))


STEADY = (4.0,) * 6
WILD = (2.0, 3.0, 4.0, 5.0, 6.0, 7.0)


def test_equal_runs_settle_and_unequal_ones_do_not() -> None:
    steady, wild = outcome(STEADY, within=0.1), outcome(WILD)
    assert steady.is_settled
    assert steady.exit_code == 0
    assert steady.statement == "p50 settled within 10 % after 6 runs"
    assert wild.exit_code == EXIT_EVIDENCE
    assert wild.statement.startswith("p50 did not settle in 6 runs: its interval reaches ")
    assert outcome(STEADY[:5]).statement == "p50 has no interval after 5 of at least 6 runs"
    assert outcome(STEADY, figure="rate").is_settled


def test_a_gate_judges_the_median_of_the_runs() -> None:
    # Two of six runs exceed the limit.
    medians_ms = (4.0, 4.0, 4.0, 4.0, 9.0, 9.0)
    assert not any(result.failed for result in outcome(medians_ms, "p50>5ms").gates)
    failed = outcome(medians_ms, "p50>3ms", "rate<50")
    assert [result.failed for result in failed.gates] == [True, False]
    assert failed.exit_code == EXIT_GATE
    assert outcome(medians_ms, "max>1ms").exit_code == EXIT_GATE


def test_failures_of_a_single_run_count() -> None:
    failing = outcome(STEADY, within=1, failures=8)
    assert failing.exit_code == EXIT_FAILED
    (result,) = outcome(STEADY, "error_rate>0.9%", within=1, failures=8).gates
    assert result.failed
    assert result.figure == pytest.approx(8 / 808, rel=0.02)


def test_the_report_has_a_line_for_each_run_and_the_median() -> None:
    found = outcome(STEADY, "p50>5ms", within=0.1)
    report = repetition_report(found, {"Model": "digits"})
    console = Console(file=io.StringIO(), width=80)
    print_report(report, console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    names = [line.split("│")[1].strip() for line in text.splitlines() if "│" in line]
    assert names == ["1", "2", "3", "4", "5", "6", "median"]
    assert re.search(r"^  p50: median [34]\.\d\d ms, 95 % interval 3\.\d\d ms to 4\.\d\d ms$", text, re.MULTILINE)
    assert text.startswith("p50 settled within 10 % after 6 runs: median ")
    assert "passed: p50 " in text
    document = json.loads(json.dumps(report.document()))
    assert document["repeated_until"]["settled"] is True
    assert document["figures"]["p50"]["low"] <= document["figures"]["p50"]["median"]
    assert len(document["runs"]) == 6
    page = render_page(report.page())
    assert "p50 settled within 10 % after 6 runs" in page
    assert "p50 by run" in page
    assert [row["run"] for row in report.rows()] == [1, 2, 3, 4, 5, 6]
    assert 'name="the figure settled"' in junit_xml(report)


def test_an_unsettled_figure_is_a_failed_case() -> None:
    found = outcome(WILD)
    assert [case.name for case in found.cases if case.error] == ["the figure settled"]
    page = render_page(repetition_report(found, {}).page())
    assert "Inconclusive" in page
    assert "p50 did not settle" in page


def test_runs_are_repeated_until_the_figure_settles(server: Doubling) -> None:
    options = ("--users", "2", "--requests", "60", "--repeat-until-settled", "p50", "--settled-within", "1")
    ended = forked_command.run(
        "tpuserve-loadtest", "run", MODEL, "--grpc", server.grpc_address, *UNRECORDED, *options, *QUIET, "--json"
    )
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert 6 <= len(report["runs"]) <= 20
    assert len(server.rows) == 60 * len(report["runs"])
    assert "Run 6 of at most 20, for 60 requests: 2 users" in ended.stderr


def test_the_limit_of_runs_ends_an_unsettled_repetition(server: Doubling) -> None:
    options = ("--users", "1", "--requests", "5", "--repeat-until-settled", "p99", "--settled-within", "0.000001")
    ended = forked_command.run(
        *(
            "tpuserve-loadtest",
            "run",
            MODEL,
            "--grpc",
            server.grpc_address,
            *UNRECORDED,
            *options,
            *QUIET,
            "--most-runs",
            "7",
        )
    )
    assert ended.returncode == EXIT_EVIDENCE, ended.stderr
    assert "p99 did not settle in 7 runs" in ended.stdout
    assert len(server.rows) == 35


def test_options_of_a_repetition_need_it() -> None:
    ended = forked_command.run("tpuserve-loadtest", "run", MODEL, "--grpc", "127.0.0.1:1", "--most-runs", "8")
    assert ended.returncode == 2
    assert "--most-runs has no effect without --repeat-until-settled" in ended.stderr
