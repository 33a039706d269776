"""Tests for `loadtest diff` and for baselines of `run`: comparable results, their verdict, and the folder."""

import io
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from tests.loadtests.doubling_server import MODEL, Doubling, serving
from tests.loadtests.recorded_runs import open_load, recorded_run
from tests.support import forked_command
from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.judgement.exit_codes import EXIT_EVIDENCE, EXIT_GATE, EXIT_USAGE
from tpuserve_loadtests.judgement.run import Rules, judge_run
from tpuserve_loadtests.judgement.search import Found, Outcome, Probe, Searched
from tpuserve_loadtests.judgement.threshold import Threshold
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.monitoring.server_side import Seen
from tpuserve_loadtests.monitoring.watched import Watched
from tpuserve_loadtests.rendering.report import Report
from tpuserve_loadtests.rendering.result_file import PARTS, BadResult, ResultFile, result_json
from tpuserve_loadtests.rendering.terminal import print_report
from tpuserve_loadtests.reports.diff import diff_report
from tpuserve_loadtests.reports.run import run_report
from tpuserve_loadtests.reports.search import search_report
from tpuserve_loadtests.reports.sweep import sweep_report

_NOW = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)


def result(path: Path, measured: Measured, model: str = "m") -> ResultFile:
    report = run_report(judge_run(measured, model=model, rows=1), {})
    path.write_text(result_json(report, _NOW, _NOW, with_runs=True), encoding="utf-8")
    return ResultFile.read(path)


def diff(folder: Path, a: Measured, b: Measured, models: tuple[str, str] = ("m", "m")) -> tuple[int, str]:
    old = result(folder / "a.json", a, models[0])
    new = result(folder / "b.json", b, models[1])
    report = diff_report(old, new, Rules(least_effect=0.1, fail_if_unclear=False))
    return report.exit_code, report.statement


def printed(report: Report) -> str:
    console = Console(file=io.StringIO(), width=120)
    print_report(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_parts_of_a_run_add_up_to_it(tmp_path: Path) -> None:
    measured = recorded_run(open_load(300), failures={"UNAVAILABLE: gone": 7}, seconds=7.5)
    parts = result(tmp_path / "run.json", measured).rounds()
    assert len(parts) == PARTS
    assert sum(part.span_s for part in parts) == pytest.approx(7.4)  # complete windows
    histograms = [part.total.histogram.count for part in parts]
    assert sum(histograms) == pytest.approx(measured.total.histogram.count, abs=300 * 0.2)
    assert [error.count for part in parts for error in part.recorder.errors()] == [7]


def test_run_with_a_number_of_requests_is_read_back(tmp_path: Path) -> None:
    load = Load(float("inf"), 0.0, profile=open_load(300).profile, process="constant", requests=600)
    measured = Measured(load, recorded_run(open_load(300, seconds=2, warm_up_s=0)).recorder, 2.0, (0.2,))
    assert result(tmp_path / "run.json", measured).rounds()[0].load.seconds == float("inf")


def test_slower_result_is_worse_and_an_equal_one_is_not(tmp_path: Path) -> None:
    before, slower = recorded_run(open_load(1000), seed=1), recorded_run(open_load(1000), 6.0, seed=2)
    code, statement = diff(tmp_path, before, slower)
    assert code == EXIT_GATE
    assert statement.startswith("B is worse")
    code, _ = diff(tmp_path, before, recorded_run(open_load(1000), seed=3))
    assert code == 0


def test_versions_of_a_model_are_comparable(tmp_path: Path) -> None:
    same = recorded_run(open_load(1000))
    assert diff(tmp_path, same, same, ("m version 3", "m label canary"))[0] == 0


def test_other_loads_models_and_lines_are_not_comparable(tmp_path: Path) -> None:
    run = recorded_run(open_load(100))
    code, statement = diff(tmp_path, run, recorded_run(open_load(200)))
    assert code == EXIT_EVIDENCE
    assert "Load: 100 requests/s, constant (open) before, 200 requests/s, constant (open) now" in statement
    assert "Model: m before, other now" in diff(tmp_path, run, run, ("m", "other"))[1]
    assert "Lines: grpc, rest before, rest now" in diff(tmp_path, run, recorded_run(open_load(100), lines=("rest",)))[1]


def sweep_result(path: Path, *runs: Measured) -> ResultFile:
    report = sweep_report([judge_run(measured, model="m", rows=1) for measured in runs], {})
    path.write_text(result_json(report, _NOW, _NOW, with_runs=True), encoding="utf-8")
    return ResultFile.read(path)


def test_sweeps_are_compared_by_load(tmp_path: Path) -> None:
    rates = (500, 1000, 2000)
    old = sweep_result(tmp_path / "a.json", *(recorded_run(open_load(rate), seed=1) for rate in rates))
    new = sweep_result(
        tmp_path / "b.json",
        recorded_run(open_load(500), seed=2),
        recorded_run(open_load(1000), 6.0, seed=3),
        recorded_run(open_load(4000)),
    )
    report = diff_report(old, new, Rules(least_effect=0.1, fail_if_unclear=False))
    assert report.exit_code == EXIT_GATE
    assert report.statement.startswith("1000 requests/s, constant: B is worse")
    loads = report.document()["loads"]
    assert [loads[f"{rate} requests/s, constant"]["verdict"] for rate in (500, 1000)] == ["same", "worse"]
    (note,) = report.document()["notes"]
    assert note.endswith("only one result has them: 2000 requests/s, constant, 4000 requests/s, constant")
    failed = {case.name for case in report.cases if case.problem}
    assert "1000 requests/s, constant: p50 of B is not worse" in failed
    assert not any(name.startswith("500 ") for name in failed)
    text = printed(report)
    assert [line.split("│")[1:-1:7] for line in text.splitlines() if "requests/s, constant │" in line]
    assert diff_report(old, old, Rules(least_effect=0.1)).exit_code == 0
    other = sweep_result(tmp_path / "c.json", recorded_run(open_load(50)))
    assert diff_report(old, other, Rules()).exit_code == EXIT_EVIDENCE


def search_result(path: Path, best: float | None, ceiling: float | None) -> ResultFile:
    probes = [
        Probe(rate, outcome, "late")
        for rate, outcome in ((best, Outcome.HOLDS), (ceiling, Outcome.FAILS))
        if rate is not None
    ]
    found = Found(*(next((each for each in probes if each.rate_per_s == rate), None) for rate in (best, ceiling)))
    tries = [(probe, Watched.of(recorded_run(open_load(100)), Seen())) for probe in probes]
    report = search_report("m", Searched(found, tries), [Threshold.parse("p99<=20ms")], {})
    path.write_text(result_json(report, _NOW, _NOW, with_runs=True), encoding="utf-8")
    return ResultFile.read(path)


@pytest.mark.parametrize(
    ("before", "now", "code", "verdict"),
    [
        ((1000, 1020), (1000, 1020), 0, "same"),
        ((1000, 1020), (1040, 1060), 0, "same"),
        ((1000, 1020), (800, 820), EXIT_GATE, "worse"),
        ((1000, 1020), (None, 50), EXIT_GATE, "worse"),
        ((1000, 1020), (1300, None), 0, "better"),
        ((1000, 2000), (1000, 2000), EXIT_EVIDENCE, "unclear"),
        ((None, 50), (None, 50), EXIT_EVIDENCE, "unclear"),
    ],
)
def test_searches_are_compared_by_the_rate_that_they_found(
    before: tuple[float | None, float | None],
    now: tuple[float | None, float | None],
    code: int,
    verdict: str,
    tmp_path: Path,
) -> None:
    old, new = search_result(tmp_path / "a.json", *before), search_result(tmp_path / "b.json", *now)
    report = diff_report(old, new, Rules(least_effect=0.1))
    assert (report.exit_code, report.document()["verdict"]) == (code, verdict)
    assert bool([case for case in report.cases if case.problem or case.error]) == bool(code)
    assert f"A {before[0] or 0:,.1f}/s, B {now[0] or 0:,.1f}/s, ratio " in report.statement


def test_a_sweep_is_not_comparable_with_a_run(tmp_path: Path) -> None:
    run = recorded_run(open_load(500))
    old, new = result(tmp_path / "a.json", run), sweep_result(tmp_path / "b.json", run)
    report = diff_report(old, new, Rules())
    assert report.exit_code == EXIT_EVIDENCE
    assert "Content: one load before, several loads now" in report.statement


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("not json", "not a JSON file"),
        ('{"total": 1}', "has the schema None"),
        ('{"schema": "tpuserve.loadtest.result/1", "kind": "loadtest"}', "has no runs"),
        ('{"schema": "tpuserve.loadtest.result/1", "kind": "rollout", "runs": {"1": {}}}', "has no runs to"),
        (
            '{"schema": "tpuserve.loadtest.result/1", "kind": "loadtest search", "runs": {"1": {}}, '
            '"rate_per_s": null, "problem": "interrupted"}',
            "a search that did not end: interrupted",
        ),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(BadResult, match=problem):
        ResultFile.read(path)
    ended = forked_command.run("tpuserve-loadtest", "diff", str(path), str(path))
    assert ended.returncode == EXIT_USAGE
    assert problem in ended.stderr


Serve = Callable[[float], Doubling]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda service_s: stack.enter_context(serving(Doubling(service_s=service_s)))


def run(server: Doubling, *options: str) -> forked_command.Ended:
    load = ("--grpc", server.grpc_address, "--duration", "1s", "--warm-up", "100ms", "--generator-limit", "note")
    return forked_command.run("tpuserve-loadtest", "run", MODEL, *load, "--unclear", "note", *options)


def test_baseline_is_the_newest_passed_result_of_the_same_load(serve: Serve, tmp_path: Path) -> None:
    fast, slow = serve(0.002), serve(0.03)
    folder, junit = tmp_path / "results", tmp_path / "run.xml"
    options = ("--users", "2", "--baseline", str(folder))
    first = run(fast, *options)
    assert first.returncode == 0, first.stderr
    assert "has no passed result with the same model, load and machine" in first.stderr
    (file,) = folder.iterdir()
    assert json.loads(file.read_text(encoding="utf-8"))["kind"] == "loadtest"

    worse = run(slow, *options, "--junit", str(junit), "--json")
    assert worse.returncode == EXIT_GATE, worse.stderr
    document = json.loads(worse.stdout)
    assert document["headline"]["words"].startswith("Baseline: B is worse")
    assert document["baseline"]["verdict"] == "worse"
    assert 'name="baseline: p50 of B is not worse"' in junit.read_text(encoding="utf-8")
    assert list(folder.iterdir()) == [file]  # a failed run is no baseline

    other = run(slow, "--users", "3", "--baseline", str(folder))
    assert other.returncode == 0, other.stderr
    assert len(list(folder.iterdir())) == 2


def test_rules_of_a_baseline_need_one(serve: Serve) -> None:
    ended = run(serve(0.0))
    assert ended.returncode == EXIT_USAGE
    assert "--unclear has no effect without --baseline" in ended.stderr
