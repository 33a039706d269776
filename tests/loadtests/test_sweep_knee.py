"""Tests for the knee of a sweep, with servers whose knee is known."""

import io

import pytest
from rich.console import Console

from tests.loadtests.recorded_runs import open_load, recorded_run
from tpuserve_loadtests.judgement.run import judge_run
from tpuserve_loadtests.judgement.sweep import find_knee
from tpuserve_loadtests.rendering.page import render_page
from tpuserve_loadtests.rendering.report import Report
from tpuserve_loadtests.rendering.terminal import print_report
from tpuserve_loadtests.reports.sweep import sweep_report


@pytest.mark.parametrize("slots", [1, 4, 16])
def test_the_knee_of_a_server_with_slots_is_at_as_many_users(slots: int) -> None:
    users = (1, 2, 4, 8, 16, 32, 64)
    # With a service time of 1 s, more users than slots only wait.
    loads = [(min(each, slots) / 1.0, max(each / slots, 1.0)) for each in users]
    knee = find_knee(loads)
    assert knee is not None
    assert users[knee] == slots


def test_a_throughput_that_grows_until_the_last_load_has_no_knee() -> None:
    assert find_knee([(1.0, 1.0), (2.0, 1.0), (4.0, 1.1)]) is None


def test_two_loads_have_no_knee() -> None:
    assert find_knee([(2.0, 1.0), (2.0, 2.0)]) is None


def report(*medians_ms: float, failing: int | None = None) -> Report:
    """Return a sweep of 100, 200, … requests/s with these median latencies, in which one step may fail."""
    runs = [
        recorded_run(open_load(100 * number), median, failures={"gone": 50} if number == failing else None)
        for number, median in enumerate(medians_ms, start=1)
    ]
    return sweep_report([judge_run(run, model="m", rows=1) for run in runs], {})


def printed(found: Report) -> str:
    console = Console(file=io.StringIO(), width=200)
    print_report(found, console)
    assert isinstance(console.file, io.StringIO)
    return " ".join(console.file.getvalue().split())


def test_the_knee_is_named_in_the_terminal_the_page_and_the_document() -> None:
    found = report(2, 2.2, 2.5, 9, 30)
    assert "the knee is at 300 requests/s, constant (300/s, p99 " in printed(found)
    page = render_page(found.page())
    assert ">knee<" in page
    assert "beyond which latency grows faster than throughput" in page
    assert [step["knee"] for step in found.document()["steps"]] == [False, False, True, False, False]
    assert [row["knee"] for row in found.rows()] == [False, False, True, False, False]


def test_a_sweep_that_ends_before_the_knee_says_so() -> None:
    assert "the knee is beyond 300 requests/s, constant" in printed(report(2, 2.1, 2.2))
    assert "a knee needs at least 3 loads that succeed, and there are 2" in printed(report(2, 2.1))


def test_a_load_whose_requests_fail_is_no_knee() -> None:
    found = report(2, 2.2, 9, 0.1, failing=4)
    assert printed(found).startswith("50 requests failed: ")
    assert "with 400 requests/s, constant, most often with: gone." in printed(found)
    assert [step["knee"] for step in found.document()["steps"]] == [False, True, False, False]
