"""Tests for comparisons in which requests fail, and for the gates of B."""

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from tests.loadtests.recorded_runs import open_load, recorded_run
from tpuserve_loadtests.judgement.comparison import ComparisonOutcome, judge_comparison
from tpuserve_loadtests.judgement.exit_codes import EXIT_EVIDENCE, EXIT_GATE
from tpuserve_loadtests.judgement.run import Rules
from tpuserve_loadtests.judgement.threshold import Threshold
from tpuserve_loadtests.rendering.page import render_page
from tpuserve_loadtests.rendering.terminal import print_report
from tpuserve_loadtests.reports.compare import compare_report
from tpuserve_loadtests.statistics.comparison import Verdict

MESSAGE = "HTTP 500: out of memory"
# Of 840 requests of a run, about 5 %.
MANY = 40


def compared(a: int, b: int, gates: Sequence[str] = ()) -> ComparisonOutcome:
    """Compare sides of equal speed in which `a` and `b` requests of each run fail."""
    rounds = [
        (
            recorded_run(open_load(100), seed=2 * number, failures={MESSAGE: a}),
            recorded_run(open_load(100), seed=2 * number + 1, failures={MESSAGE: b}),
        )
        for number in range(4)
    ]
    return judge_comparison(
        ("stable", "canary"), rounds, Rules(tuple(map(Threshold.parse, gates)), fail_if_unclear=False)
    )


def printed(outcome: ComparisonOutcome, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_report(compare_report("m", outcome, {}), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("a", "b", "gates", "verdict", "exit_code"),
    [
        (0, 0, [], Verdict.SAME, 0),
        (0, MANY, [], Verdict.WORSE, EXIT_GATE),
        (MANY, MANY, [], Verdict.FAILING, 1),
        (MANY, 0, [], Verdict.BETTER, 1),
        (MANY, MANY, ["error_rate>10%"], Verdict.FAILING, 0),
        (MANY, 0, ["error_rate>1%"], Verdict.BETTER, 1),
        (0, 0, ["p99>1ms"], Verdict.SAME, EXIT_GATE),
        (0, 0, ["p99>1s", "p95>1s", "rate<5"], Verdict.SAME, 0),
        (0, 0, ["p99.9>1s", "rate<5"], Verdict.SAME, EXIT_EVIDENCE),
    ],
)
def test_failures_and_gates_decide_the_exit_code(
    a: int, b: int, gates: list[str], verdict: Verdict, exit_code: int
) -> None:
    outcome = compared(a, b, gates)
    assert outcome.comparison is not None
    assert (outcome.comparison.verdict, outcome.exit_code) == (verdict, exit_code)


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        (0, MANY, "B is worse"),
        (MANY, MANY, "Requests failed"),
        (MANY, 0, "B is better, but requests failed"),
    ],
)
def test_the_first_sentence_names_the_side_its_share_and_a_message(a: int, b: int, verdict: str) -> None:
    outcome = compared(a, b)
    shares = [f"{side} ({name}) failed {'4.76' if failed else '0'} %" for side, name, failed in
              (("B", "canary", b), ("A", "stable", a))]  # fmt: skip
    sentence = f"{verdict}: {shares[0]} of its requests, {shares[1]} of its requests, most often with: {MESSAGE}."
    assert " ".join(printed(outcome).split()).startswith(sentence)
    page = render_page(compare_report("m", outcome, {}).page())
    assert f"<strong>{verdict}</strong>" in page
    assert f"most often with: {MESSAGE}" in page


def test_the_failure_rate_of_each_side_is_in_terminal_page_and_document() -> None:
    outcome = compared(0, MANY)
    report = compare_report("m", outcome, {})
    for width in (80, 120):
        lines = [line.replace("┃", "│").split("│") for line in printed(outcome, width).splitlines()]
        table = [[cell.strip() for cell in line[1:-1]] for line in lines if len(line) > 8]
        column = table[0].index("failure rate")
        assert [row[column] for row in table[1:]] == ["0 %", "4.76 %"]
    document = report.document()
    rates = {side: document["sides"][side]["error_rate"] for side in "ab"}
    assert rates == {"a": 0.0, "b": pytest.approx(160 / 3360)}
    assert document["sides"]["b"]["errors"] == [{"message": MESSAGE, "count": 160}]
    assert document["sides"]["b"]["p95_ms"] > 0
    assert document["sides"]["b"]["p99_ms"] is None  # it falls among the failures
    assert document["error_rate"]["verdict"] == "worse"
    assert "failure rate" in render_page(report.page())


def test_a_gate_of_b_is_in_the_report() -> None:
    outcome = compared(0, 0, ["p99>1ms", "rate<5"])
    report = compare_report("m", outcome, {})
    assert printed(outcome).startswith("B failed a gate: p99 ")
    assert [gate["failed"] for gate in report.document()["gates"]] == [True, False]
    assert [case.name for case in report.cases if case.problem] == ["p99 <= 1 ms"]
    assert "Gates of B" in render_page(report.page())


def test_a_gate_of_b_without_enough_requests_is_in_the_verdict() -> None:
    words = " ".join(printed(compared(0, 0, ["p99.9>1s", "rate<5"])).split())
    assert words.startswith("B is the same as A, but not enough evidence for 1 gate: p99.9 ")
    assert "about 4,603 are needed" in words
