"""Tests for the first sentence of a run's report, and for the percentiles of its table."""

import io

import pytest
from rich.console import Console

from tests.loadtests.metrics_pages import seen_server
from tests.loadtests.recorded_runs import open_load, recorded_run
from tpuserve_loadtests.judgement.run import Rules, judge_run
from tpuserve_loadtests.judgement.threshold import Threshold
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.rendering.report import Headline
from tpuserve_loadtests.rendering.terminal import print_sections
from tpuserve_loadtests.reports.run import checks_table, run_document, run_report


def gates(*texts: str) -> tuple[Threshold, ...]:
    return tuple(map(Threshold.parse, texts))


def run(**more: object) -> Measured:
    return recorded_run(open_load(300), **more)  # type: ignore[arg-type]  # as recorded_run's


def overloaded(measured: Measured) -> Measured:
    return Measured(measured.load, measured.recorder, measured.span_s, (0.97,))


def test_a_sentence_is_the_verdict_and_the_first_reason() -> None:
    assert Headline("good", "B is better").sentence == "B is better."
    assert Headline("bad", "Failed", ["p99 is late.", "note"]).sentence == "Failed: p99 is late."
    assert Headline("bad", "Drifting: p50", ["p50 grew"]).sentence == "Drifting: p50; p50 grew."


@pytest.mark.parametrize(
    ("measured", "texts", "expected"),
    [
        (run(), (), "All requests succeeded: 2,400 requests, 300/s, p99 "),
        (run(), ("p99>1ms",), "Failed the gate: p99 "),
        (run(), ("error_rate<1%",), "Failed the gate: error_rate 0 %, fails if < 1 %."),
        (
            run(failures={"gone": 3}),
            ("error_rate>0.1%",),
            "Failed the gate: error_rate 0.125 %, fails if > 0.1 %, most often with: gone.",
        ),
        (run(failures={"gone": 3}), (), "Failed: 3 of 2,403 requests; most often with: gone."),
        (overloaded(run()), (), "Inconclusive: the load generator was the limit; it used 0.97 of one core; increase"),
    ],
)
def test_the_first_sentence_is_the_verdict_and_its_cause(
    measured: Measured, texts: tuple[str, ...], expected: str
) -> None:
    report = run_report(judge_run(measured, Rules(gates(*texts)), model="m", rows=1), {})
    assert report.page().headline.sentence.startswith(expected)
    assert report.statement == report.page().headline.sentence


def test_the_cause_of_a_missed_latency_gate_is_the_largest_part_of_the_time() -> None:
    watched = judge_run(run(), Rules(gates("p99>1ms")), model="m", rows=1, seen=seen_server(2400, queue_s=0.003))
    assert " of the mean latency is queue wait." in run_report(watched, {}).statement


def test_goodput_is_the_rate_of_the_responses_within_the_lowest_objective() -> None:
    measured = run(failures={"gone": 3})
    outcome = judge_run(measured, Rules(gates("p50>4ms", "p99>1s")), model="m", rows=1)
    good = measured.total.requests - measured.total.late(4)
    assert run_document(outcome)["goodput"] == {"rate_per_s": good / measured.span_s, "within_ms": 4}
    page = run_report(outcome, {}).page()
    assert [(tile.figure, tile.note) for tile in page.tiles or () if tile.name == "goodput"] == [
        (f"{good / measured.span_s:.0f}/s", "within 4 ms")
    ]
    without = judge_run(measured, Rules(gates("error_rate>1%")), model="m", rows=1)
    assert run_document(without)["goodput"] is None


def test_report_states_the_share_of_responses_that_were_parsed() -> None:
    measured = recorded_run(open_load(300), unparsed=600)
    outcome = judge_run(measured, model="m", rows=1)
    note = "75 % of the responses were parsed in full; of the others, the text outside of the numbers was compared"
    assert note in outcome.notes
    assert run_document(outcome)["parsed_share"] == 0.75
    assert run_document(outcome)["total"]["unparsed"] == 600
    (form,) = [row for row in checks_table(outcome).rows if row.name == "Response form"]
    assert form.cells == ["0 wrong; 75 % parsed in full", "✓ passed"]
    assert judge_run(run(), model="m", rows=1).measured.parsed_note == ""


def test_the_table_has_p95_and_p99_9_and_fits_a_terminal() -> None:
    measured = run(wrong=2)
    outcome = judge_run(measured, Rules(gates("p95>1s", "p99.9>1s")), model="m", rows=1)
    for width, columns in (
        (80, ["p50 ms", "p99 ms", "p99.9 ms", "max ms"]),
        (120, ["p50 ms", "p90 ms", "p95 ms", "p99 ms", "p99.9 ms", "max ms"]),
    ):
        console = Console(file=io.StringIO(), width=width)
        print_sections(run_report(outcome, {}).page().sections, console)
        assert isinstance(console.file, io.StringIO)
        lines = console.file.getvalue().splitlines()
        (heading,) = [line for line in lines if "p50 ms" in line]
        assert [cell.strip() for cell in heading.strip("┃").split("┃")][-len(columns) :] == columns
        assert max(map(len, lines[: lines.index(heading) + 8])) <= width
    total = run_document(outcome)["total"]
    for percent, name in ((95, "p95_ms"), (99.9, "p99_9_ms")):
        assert total[name] == measured.total.percentile_ms(percent)
