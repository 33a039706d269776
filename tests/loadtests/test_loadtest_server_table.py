"""Tests for the server's figures of several runs in one table."""

import io
import re

import pytest
from rich.console import Console

from tests.loadtests.metrics_pages import MetricsPages, seen_server
from tests.loadtests.recorded_runs import open_load, recorded_run
from tpuserve_loadtests.judgement.comparison import judge_comparison
from tpuserve_loadtests.judgement.run import judge_run
from tpuserve_loadtests.judgement.search import Found, Outcome, Probe, Searched
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.monitoring.metrics_page import Served
from tpuserve_loadtests.monitoring.server_side import Seen, read_stretch
from tpuserve_loadtests.monitoring.watched import Watched, changes
from tpuserve_loadtests.rendering.terminal import print_report, print_sections
from tpuserve_loadtests.reports import servers
from tpuserve_loadtests.reports.compare import compare_report
from tpuserve_loadtests.reports.sweep import sweep_report

WHY = "the time breakdown needs metrics"


def run(median_ms: float = 20.0, requests: int = 100) -> Measured:
    return recorded_run(open_load(requests, seconds=1.0, warm_up_s=0.0), median_ms)


def shown(rows: list[tuple[str, Watched]], width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_sections([servers.table("load", rows)], console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_table_of_what_the_server_told_fits_a_terminal_of_80() -> None:
    rows = [(f"{users} users", Watched.of(run(), seen_server(100, batch=users))) for users in (1, 100)]
    narrow, wide = shown(rows, 80), shown(rows, 120)
    assert max(map(len, narrow.splitlines())) <= 80
    assert "total" in wide
    for text in (narrow, wide):
        lines = [line for line in text.splitlines() if "users" in line]
        assert [[cell.strip() for cell in line.split("│")][3:5] for line in lines] == [["1.00", "2.00"]] * 2
        assert "padding" in text
        assert "refused" not in text


def test_a_server_that_tells_nothing_has_no_table() -> None:
    assert shown([("1 user", Watched.of(run(), Seen(note=WHY)))], 120) == ""


def test_several_runs_together_are_all_requests_of_all_runs() -> None:
    waits_s = (0.001, 0.001, 0.004)
    runs = [Watched.of(run(), seen_server(100, queue_s=queue_s, latency_s=0.008)) for queue_s in waits_s]
    both = Watched.together(runs)
    assert both.server is not None
    queue = both.server.phase("queue wait")
    assert queue is not None
    assert queue.count == 300
    assert queue.mean_ms == pytest.approx(2.0)
    assert both.server.answers == {"OK": 300}
    assert both.latency_ms == pytest.approx(sum(one.latency_ms or 0 for one in runs) / 3, rel=1e-3)
    assert both.note == ""
    assert both.server.timeline == ()


def test_a_run_of_which_nothing_is_known_is_left_out_on_both_sides() -> None:
    known, unknown = Watched.of(run(20.0), seen_server(100)), Watched.of(run(500.0), Seen(note=WHY))
    both = Watched.together([known, unknown])
    assert both.latency_ms == known.latency_ms
    assert both.note == f"the server's metrics cover 1 of 2 runs: {WHY}"
    assert Watched.together([unknown, unknown]).note == WHY
    assert Watched.together([unknown, unknown]).server is None


def test_what_changed_is_told_by_the_part_that_it_is_in() -> None:
    before = Watched.of(run(20.0), seen_server(100))
    after = Watched.of(run(20.0), seen_server(100, batch=4, run_s=0.012, latency_s=0.014))
    summary = changes(before, after)
    # The client's latency is equal: the network's share shrinks as the server's grows.
    assert "network -10.00, execution +10.00" in summary
    assert "batches of 4 rows instead of 1" in summary
    assert changes(before, Watched.of(run(), Seen())) == ""


def slow_side() -> Watched:
    return Watched.of(run(20.0), seen_server(100, run_s=0.012, latency_s=0.014))


def test_a_comparison_says_where_b_is_slower() -> None:
    pairs = [(recorded_run(open_load(100), 4, seed=n), recorded_run(open_load(100), 8, seed=9 - n)) for n in range(3)]
    sides = (Watched.of(run(10.0), seen_server(100)), slow_side())
    outcome = judge_comparison(("1", "2"), pairs, sides=sides)
    console = Console(file=io.StringIO(), width=80)
    report = compare_report("m", outcome, {})
    print_report(report, console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert text.startswith("B is worse: mean: ")
    assert re.search(r"\n  B compared with A: mean latency \+\d+\.\d\d ms: execution \+10\.00", text)
    assert [line.split("│")[1].strip() for line in text.splitlines() if "│" in line][-2:] == ["A", "B"]
    assert report.document()["sides"]["b"]["server"]["execution_ms"] == pytest.approx(12)
    same = judge_comparison(("1", "1"), [(pairs[0][0], pairs[0][0])] * 3, sides=sides)
    assert same.where == ""


def test_what_is_not_known_of_both_sides_is_told_once() -> None:
    unknown, known = Watched.of(run(), Seen(note=WHY)), slow_side()

    def notes(*sides: Watched) -> tuple[str, ...]:
        return judge_comparison(("1", "2"), [], sides=sides).server_notes

    assert notes(unknown, unknown) == (WHY,)
    assert notes(known, unknown) == (f"B: {WHY}",)
    assert notes() == ()


def test_a_search_that_is_part_of_something_tells_no_note_again() -> None:
    unknown = Watched.of(run(), Seen(note=WHY))
    searched = Searched(Found(probe(100, Outcome.HOLDS), None), [(probe(100, Outcome.HOLDS), unknown)], unknown)
    assert searched.server_notes() == [WHY]
    assert searched.server_notes(known_note=WHY) == []


def probe(rate_per_s: float, outcome: Outcome) -> Probe:
    return Probe(rate_per_s, outcome, "")


def test_a_search_says_what_gave_in() -> None:
    quick = Watched.of(run(10.0), seen_server(100))
    held, failed = probe(100, Outcome.HOLDS), probe(120, Outcome.FAILS)
    tries = [(held, quick), (probe(200, Outcome.FAILS), quick), (failed, slow_side())]
    alone = Watched.of(run(10.0), seen_server(100))
    for found in (Found(held, failed), None):
        searched = Searched(found, tries, alone)
        assert [name for name, _ in searched.server_rows] == [
            "100 requests/s, constant",
            "100.0/s holds",
            "120.0/s fails",
        ]
        assert searched.bottleneck.startswith("120.0/s compared with 100 requests/s, constant: mean latency +")
        assert "execution +10.00" in searched.bottleneck
    assert Searched(Found(held, None), tries, alone).bottleneck == ""
    assert Searched(None, []).server_rows == []


def test_refusals_have_a_column_of_their_own() -> None:
    server = MetricsPages()
    server.read(0.0)
    server.answer(0.001, run_s=0.001, latency_s=0.003)
    server.refuse("queue_full", 7)
    server.read(1.0)
    watched = Watched.of(run(), Seen(read_stretch(server.scrapes, Served((("m", None),)))))
    assert "refused" in shown([("1 user", watched)], 80)
    assert "7" in shown([("1 user", watched)], 80)


def test_what_is_true_of_all_steps_is_told_once() -> None:
    steps = [judge_run(run(requests=rate), model="m", rows=1, seen=Seen(note=WHY)) for rate in (100, 200)]
    console = Console(file=io.StringIO(), width=120)
    print_report(sweep_report(steps, {}), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert text.count(WHY) == 1
    assert f"  note: {WHY}\n" in text
