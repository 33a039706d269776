"""Tests for files of results: CSV by time, and HdrHistogram's log and percentiles."""

import csv
import io
import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]  # ships no annotations
from hdrh.log import HistogramLogReader  # type: ignore[import-untyped]  # ships no annotations

from tests.loadtests.doubling_server import MODEL, Doubling, serving
from tests.loadtests.recorded_runs import STARTED_AT, open_load, recorded_run
from tests.support import forked_command
from tpuserve_formats.version_reports import MOST_REPORT_BYTES
from tpuserve_loadtests.cli.files import checked_page
from tpuserve_loadtests.judgement.comparison import judge_comparison
from tpuserve_loadtests.judgement.run import judge_run
from tpuserve_loadtests.judgement.search import Outcome, Probe, Searched
from tpuserve_loadtests.judgement.soak import SoakOutcome, judge_soak
from tpuserve_loadtests.judgement.threshold import Threshold
from tpuserve_loadtests.measurement.measured import Measured, Segments
from tpuserve_loadtests.monitoring.server_side import Seen
from tpuserve_loadtests.monitoring.watched import Watched
from tpuserve_loadtests.rendering.exports import csv_text, hdr_log, percentile_distribution
from tpuserve_loadtests.rendering.report import Report
from tpuserve_loadtests.reports.compare import compare_report
from tpuserve_loadtests.reports.run import run_report
from tpuserve_loadtests.reports.search import search_report
from tpuserve_loadtests.reports.soak import soak_report
from tpuserve_loadtests.reports.sweep import sweep_report


@pytest.fixture(scope="module")
def run() -> Measured:
    return recorded_run(open_load(300), failures={"UNAVAILABLE: gone": 7})


def rows(report: Report) -> list[dict[str, str]]:
    return rows_of(csv_text(report.rows()))


def run_rows(measured: Measured) -> list[dict[str, str]]:
    return rows(run_report(judge_run(measured, model="m", rows=1), {}))


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_windows_add_up_to_the_run(run: Measured) -> None:
    found = run_rows(run)
    assert len(found) == 3 * len(run.recorder.windows)
    for line in (*run.lines(), run.total.summary("total", run.rate_per_s)):
        mine = [row for row in found if row["line"] == line.name]
        assert sum(int(row["requests"]) for row in mine) == line.requests
        assert sum(int(row["failures"]) for row in mine) == line.failures
        answered = sum(float(row["rate_per_s"]) * float(row["seconds"]) for row in mine)
        assert answered / run.span_s == pytest.approx(line.rate_per_s)
        assert max(float(row["max_ms"]) for row in mine) == line.max_ms


def test_times_count_from_where_measuring_began_and_are_those_of_a_clock_too(run: Measured) -> None:
    found = run_rows(run)
    assert [float(row["start_s"]) for row in found[::3][:3]] == pytest.approx([0, 0.2, 0.4])
    assert float(found[0]["time"]) == STARTED_AT + 1


def test_a_run_that_was_stopped_has_the_windows_that_it_came_to() -> None:
    found = run_rows(recorded_run(open_load(300), lines=("grpc",), seconds=1.1))
    seconds = [float(row["seconds"]) for row in found if row["line"] == "total"]
    assert seconds == pytest.approx([0.2, 0.2, 0.2, 0.2, 0.2, 0.1])


def test_a_window_without_an_answer_has_no_latency() -> None:
    found = run_rows(recorded_run(open_load(1, seconds=10)))
    assert {row["p99_ms"] for row in found if row["requests"] == "0"} == {""}


def test_each_step_of_a_sweep_is_a_row() -> None:
    steps = [judge_run(recorded_run(open_load(rate)), model="m", rows=1) for rate in (100, 200)]
    found = rows(sweep_report(steps, {}))
    assert [float(row["offered_per_s"]) for row in found] == [100, 200]
    assert [float(row["p99_ms"]) for row in found] == [step.total.p99_ms for step in steps]
    assert found[0]["trusted"] == "True"


def test_each_try_of_a_search_is_a_row_and_says_why() -> None:
    probe = Probe(100, Outcome.FAILS, 'p99<=20ms: 30 of 800 late, "too many"')

    def search(*tries: tuple[Probe, Measured]) -> Report:
        return search_report(
            "m",
            Searched(None, [(probe, Watched.of(measured, Seen())) for probe, measured in tries]),
            [Threshold.parse("p99<=20ms")],
            {},
        )

    (row,) = rows(search((probe, recorded_run(open_load(100)))))
    assert (row["holds"], row["reason"]) == ("False", probe.reason)
    assert csv_text(search().rows()) == ""


def test_each_run_of_a_comparison_is_a_row() -> None:
    pair = (recorded_run(open_load(100), seed=1), recorded_run(open_load(100), seed=2))
    outcome = judge_comparison(("1", "2"), [pair, pair])
    found = rows(compare_report("m", outcome, {}))
    assert [(row["round"], row["side"]) for row in found] == [("1", "A"), ("1", "B"), ("2", "A"), ("2", "B")]


def soak_of(runs: int) -> SoakOutcome:
    segments = Segments()
    for number in range(runs):
        segments.add(recorded_run(open_load(100), seed=number), 4e8 + number)
    assert segments.total is not None
    return judge_soak(judge_run(segments.total, model="m", rows=1), segments, runs)


def test_each_segment_of_a_soak_is_a_row() -> None:
    found = rows(soak_report(soak_of(3), {}))
    assert [float(row["time"]) for row in found] == [STARTED_AT + 1, STARTED_AT + 9, STARTED_AT + 17]
    assert [float(row["memory_bytes"]) for row in found] == [4e8, 4e8 + 1, 4e8 + 2]


def test_a_soaks_log_has_one_interval_for_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "soak.hdr"
    report = soak_report(soak_of(3), {})
    (measured,) = report.runs.values()
    path.write_text(hdr_log(report.runs, in_windows=report.in_windows))
    found = {histogram.get_tag(): histogram for histogram in intervals(path)}
    assert len(intervals(path)) == len(found) == 2
    assert {line.name: line.requests for line in measured.lines()} == {
        name: histogram.get_total_count() for name, histogram in found.items()
    }
    assert found["grpc"].get_end_time_stamp() / 1000 == pytest.approx(STARTED_AT + 1 + 24)


def intervals(path: Path) -> list[HdrHistogram]:
    reader = HistogramLogReader(str(path), HdrHistogram(1, 3_600_000_000, 3))
    with closing(reader):
        return list(iter(reader.get_next_interval_histogram, None))


def test_the_package_reads_the_log_back_and_its_percentiles_agree(run: Measured, tmp_path: Path) -> None:
    path = tmp_path / "run.hdr"
    path.write_text(hdr_log({"": run}))
    found = intervals(path)
    assert {histogram.get_tag() for histogram in found} == {"grpc", "rest"}
    for line in run.lines():
        merged = HdrHistogram(1, 3_600_000_000, 3)
        for histogram in found:
            if histogram.get_tag() == line.name:
                merged.add(histogram)
        assert merged.get_total_count() == line.requests - line.failures
        answered = run.recorder.tally(line.name).histogram
        for percent in (50, 90, 99, 100):
            assert merged.get_value_at_percentile(percent) == pytest.approx(answered.percentile_us(percent), rel=2e-3)


def test_intervals_lie_where_the_windows_were(run: Measured, tmp_path: Path) -> None:
    path = tmp_path / "run.hdr"
    path.write_text(hdr_log({"": run}))
    starts = sorted({histogram.get_start_time_stamp() / 1000 for histogram in intervals(path)})
    assert starts[:2] == pytest.approx([STARTED_AT + 1, STARTED_AT + 1.2])
    assert "2023-11-14 22:13:20" in path.read_text()


def test_several_runs_are_told_apart_by_their_tags(run: Measured, tmp_path: Path) -> None:
    path = tmp_path / "sweep.hdr"
    path.write_text(hdr_log({"100 requests/s, poisson": run, "200": run}))
    tags = {histogram.get_tag() for histogram in intervals(path)}
    assert tags == {"100_requests/s_poisson/grpc", "100_requests/s_poisson/rest", "200/grpc", "200/rest"}


def test_percentiles_are_written_as_the_plotter_takes_them(run: Measured) -> None:
    text = percentile_distribution(run)
    rows = [line.split() for line in text.splitlines() if re.match(r" *[\d.]+ +[\d.]+ ", line)]
    by_percentile = {float(row[1]): float(row[0]) for row in rows}
    assert text.split()[:4] == ["Value", "Percentile", "TotalCount", "1/(1-Percentile)"]
    assert 1000 * by_percentile[0.5] == pytest.approx(run.total.histogram.percentile_us(50), rel=2e-3)
    assert max(by_percentile) == 1
    assert int(rows[-1][2]) == run.total.histogram.count


@pytest.fixture
def server() -> Iterator[Doubling]:
    with serving(Doubling()) as model:
        yield model


def loadtest(server: Doubling, *arguments: str) -> forked_command.Ended:
    address = ("--grpc", server.grpc_address)
    return forked_command.run("tpuserve-loadtest", *arguments, *address, "--generator-limit", "note")


def test_a_run_writes_what_it_was_asked_for(server: Doubling, tmp_path: Path) -> None:
    table, log = tmp_path / "run.csv", tmp_path / "run.hdr"
    files = ("--csv", str(table), "--hdr", str(log))
    run = loadtest(server, "run", MODEL, "--users", "2", "--duration", "600ms", "--warm-up", "0", *files, "--json")
    assert run.returncode == 0, run.stderr
    assert f"Wrote {table}" in run.stderr
    report = json.loads(run.stdout)
    rows = rows_of(table.read_text())
    assert sum(int(row["requests"]) for row in rows if row["line"] == "total") == report["total"]["requests"]
    assert sum(histogram.get_total_count() for histogram in intervals(log)) == report["total"]["requests"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", MODEL, "--csv", "nowhere/run.csv"], "Directory nowhere does not exist"),
        (["run", MODEL, "--hdr", "."], ". is a directory"),
        (["sweep", MODEL, "--hdr", "sweep.hgrm"], "the command has several"),
        (["run", MODEL, "--attach-to", "nowhere"], "nowhere is no directory of this machine. Set a version directory"),
        (["soak", MODEL, "--attach-to", "gs://models/m/1"], "is no directory of this machine"),
        (["run", MODEL, "--attach-to", "/dev"], "/dev contains no model. Set a version directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_any_load(
    server: Doubling, arguments: list[str], complaint: str
) -> None:
    run = loadtest(server, *arguments)
    assert run.returncode == 2
    assert complaint in run.stderr
    assert not server.rows


@pytest.mark.parametrize("file", ["saved_model.pb", "assets.extra/tpuserve/manifest.json"])
def test_page_is_attached_to_a_version(server: Doubling, tmp_path: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).touch()
    load = ["--users", "1", "--duration", "300ms", "--warm-up", "0"]
    run = loadtest(server, "run", MODEL, *load, "--html", str(tmp_path / "run.html"), "--attach-to", str(tmp_path))
    assert run.returncode == 0, run.stderr
    (page,) = (tmp_path / "assets.extra/tpuserve/reports").iterdir()
    assert re.fullmatch(r"loadtest-\d{8}-\d{6}\.html", page.name)
    assert page.read_text() == (tmp_path / "run.html").read_text()
    assert re.search(r'<meta name="dcterms.created" content="\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"', page.read_text())


def test_version_that_cannot_hold_pages_is_refused_before_any_load(server: Doubling, tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").touch()
    (tmp_path / "assets.extra").write_text("a file where the directory must be")
    run = loadtest(server, "run", MODEL, "--attach-to", str(tmp_path))
    assert run.returncode == 2
    assert f"Cannot write to {tmp_path / 'assets.extra'}" in run.stderr
    assert not server.rows


def test_a_disk_that_is_full_is_told_after_the_table(server: Doubling) -> None:
    run = loadtest(server, "run", MODEL, "--users", "1", "--duration", "300ms", "--warm-up", "0", "--csv", "/dev/full")
    assert run.returncode == 1
    assert "total" in run.stdout
    assert "Cannot write /dev/full: No space left on device" in run.stderr


def test_a_page_that_is_too_large_for_the_console_has_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert checked_page("ä" * (MOST_REPORT_BYTES // 2)) is not None
    assert capsys.readouterr().err == ""
    checked_page("ä" * (MOST_REPORT_BYTES // 2 + 1))
    assert "has 8,388,610 bytes. The console lists only pages of at most 8,388,608" in capsys.readouterr().err
