"""Tests for result files: the envelope that all commands share, its schema, and the histograms of the runs."""

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.loadtests.doubling_server import MODEL, Doubling
from tests.loadtests.recorded_runs import open_load, recorded_run
from tests.loadtests.test_loadtest_files import loadtest, server, soak_of
from tpuserve_loadtests.judgement.comparison import judge_comparison
from tpuserve_loadtests.judgement.run import Rules, judge_run
from tpuserve_loadtests.judgement.search import Outcome, Probe, Searched
from tpuserve_loadtests.judgement.threshold import Threshold
from tpuserve_loadtests.monitoring.server_side import Seen
from tpuserve_loadtests.monitoring.watched import Watched
from tpuserve_loadtests.rendering.report import Headline, Page, Report
from tpuserve_loadtests.rendering.result_file import result_json
from tpuserve_loadtests.reports.compare import compare_report
from tpuserve_loadtests.reports.run import run_report
from tpuserve_loadtests.reports.search import search_report
from tpuserve_loadtests.reports.soak import soak_report
from tpuserve_loadtests.reports.sweep import sweep_report

SCHEMA = Path(__file__).parents[2] / "docs/reference/result-file.schema.json"
BEGAN, ENDED = datetime(2026, 11, 30, 9, 0, tzinfo=UTC), datetime(2026, 11, 30, 9, 1, 30, tzinfo=UTC)

__all__ = ["server"]  # a fixture


def document(report: Report, *, with_runs: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result_json(report, BEGAN, ENDED, with_runs=with_runs))
    return found


def check(found: dict[str, Any]) -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(found)


def of_run() -> Report:
    gates = (Threshold.parse("p99>1ms"),)
    return run_report(judge_run(recorded_run(open_load(100)), Rules(gates), model="m", rows=1), {"Command": "a run"})


def of_sweep() -> Report:
    return sweep_report([judge_run(recorded_run(open_load(rate)), model="m", rows=1) for rate in (50, 100)], {})


def of_search() -> Report:
    probe, measured = Probe(100, Outcome.FAILS, "too late"), recorded_run(open_load(100))
    return search_report(
        "m", Searched(None, [(probe, Watched.of(measured, Seen()))]), [Threshold.parse("p99<=20ms")], {}
    )


def of_comparison() -> Report:
    pairs = [(recorded_run(open_load(50), seed=each), recorded_run(open_load(50), seed=-each % 7)) for each in range(6)]
    return compare_report("m", judge_comparison(("1", "2"), pairs), {})


@pytest.mark.parametrize("make", [of_run, of_sweep, of_search, of_comparison, lambda: soak_report(soak_of(3), {})])
def test_documents_of_all_commands_follow_the_schema(make: Callable[[], Report]) -> None:
    report = make()
    found = document(report, with_runs=True)
    check(found)
    assert found["runs"].keys() == report.runs.keys()
    assert len(found["series"]) == len(report.rows())


def test_document_states_time_verdict_settings_and_versions() -> None:
    found = document(of_run())
    assert (found["started_at"], found["duration_s"]) == ("2026-11-30T09:00:00.000+00:00", 90)
    assert (found["exit_code"], found["headline"]["words"]) == (99, "Failed the gate")
    assert found["settings"]["Command"] == "a run"
    assert {"tpuserve-loadtests", "locust", "python"} == found["versions"].keys()
    assert found["machine"]["cores"] >= 1
    assert [case["name"] for case in found["cases"] if case["problem"]] == ["p99 <= 1 ms"]
    assert sum(row["requests"] for row in found["series"] if row["line"] == "total") == found["total"]["requests"]
    assert "runs" not in found


def test_infinite_numbers_are_null() -> None:
    page = Page("t", "", Headline("good", "fine"), [], [], {})
    report = Report("loadtest", "m", 0, [], lambda: {"at_worst": math.inf, "in": [math.nan, 1.5]}, lambda: page)
    assert document(report)["at_worst"] is None
    assert document(report)["in"] == [None, 1.5]


def test_run_writes_a_file_with_the_version_that_answered_and_without_secrets(server: Doubling, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    load = ("--users", "2", "--duration", "600ms", "--warm-up", "0", "--header", "x-token: secret-word")
    ended = loadtest(server, "run", MODEL, *load, "--json-file", str(path))
    assert ended.returncode == 0, ended.stderr
    text = path.read_text(encoding="utf-8")
    found = json.loads(text)
    check(found)
    assert "secret-word" not in text
    assert found["settings"]["Version"] == "1"
    assert found["settings"]["Command"].startswith(f"tpuserve loadtest run {MODEL} --users 2")
    assert found["started_at"] < found["ended_at"]
