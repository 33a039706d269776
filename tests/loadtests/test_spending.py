"""Tests for the cost and the energy of predictions, and for the reports that show them."""

import csv
import io
import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from tests.loadtests.recorded_runs import open_load, recorded_run
from tpuserve_formats.price import Price
from tpuserve_loadtests.judgement.comparison import judge_comparison
from tpuserve_loadtests.judgement.repetition import Settling, judge_repetition
from tpuserve_loadtests.judgement.run import Rules, judge_run
from tpuserve_loadtests.judgement.search import Found, Outcome, Probe, Searched
from tpuserve_loadtests.judgement.soak import judge_soak
from tpuserve_loadtests.judgement.spending import Spending
from tpuserve_loadtests.judgement.threshold import Threshold
from tpuserve_loadtests.measurement.measured import Measured, Segments
from tpuserve_loadtests.mlperf.report import mlperf_report
from tpuserve_loadtests.mlperf.rules import MlperfOutcome, Scenario, judge_mlperf
from tpuserve_loadtests.monitoring.energy import Energy, Unmeasured
from tpuserve_loadtests.monitoring.server_side import Seen
from tpuserve_loadtests.monitoring.watched import Watched
from tpuserve_loadtests.rendering.exports import csv_text, junit_xml
from tpuserve_loadtests.rendering.page import render_page
from tpuserve_loadtests.rendering.report import Report
from tpuserve_loadtests.rendering.scales import three_significant
from tpuserve_loadtests.rendering.terminal import print_report
from tpuserve_loadtests.reports.compare import compare_report
from tpuserve_loadtests.reports.repetition import repetition_report
from tpuserve_loadtests.reports.run import run_report
from tpuserve_loadtests.reports.search import search_report
from tpuserve_loadtests.reports.soak import soak_report
from tpuserve_loadtests.reports.sweep import sweep_report

PRICE = Price(3.6, "EUR")
# 40 W and 10 W.
WHOLE = "whole machine with the load generator"
ENERGY = Energy(8.0, {"package": 320.0, "dram": 80.0})
ABSENT = Unmeasured("this machine has no RAPL counters")
NOT_MEASURED = "Energy: not measured: this machine has no RAPL counters"


@pytest.fixture(scope="module")
def run() -> Measured:
    """Return a run with 100 responses per second."""
    return recorded_run(open_load(100))


def printed(report: Report) -> str:
    console = Console(file=io.StringIO(), width=120)
    print_report(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def document(report: Report) -> Any:  # noqa: ANN401  a JSON document
    return json.loads(json.dumps(report.document(), allow_nan=False))


def cells(report: Report, heading: str) -> list[float | None]:
    return [
        float(row[heading]) if row[heading] else None for row in csv.DictReader(io.StringIO(csv_text(report.rows())))
    ]


def test_the_price_of_an_hour_buys_the_predictions_of_an_hour() -> None:
    spending = Spending(100.0, 4.0, PRICE, ENERGY)
    assert spending.predictions_per_s == 400.0
    assert spending.per_million_predictions == pytest.approx(3.6 / (3600 * 400) * 1e6)
    assert spending.per_million_requests == pytest.approx(10.0)
    assert spending.work_per_price == pytest.approx(400 / 3.6)
    assert spending.joules_per_prediction == pytest.approx(50 / 400)


def test_without_a_success_there_is_neither_cost_nor_energy_of_a_prediction() -> None:
    found = Spending(0.0, 1.0, PRICE, ENERGY).as_document()
    assert found["cost"]["note"] == "no cost: no request succeeded"
    assert (found["cost"]["per_million_predictions"], found["cost"]["per_million_requests"]) == (None, None)
    assert (found["energy"]["joules_per_prediction"], found["energy"]["joules"]) == (None, ENERGY.joules)


def test_figures_that_do_not_apply_are_null() -> None:
    assert Spending(100.0, 1.0).as_document() == {"cost": None, "energy": None}
    unmeasured = Spending(100.0, 1.0, energy=ABSENT).as_document()["energy"]
    assert unmeasured["note"] == "not measured: this machine has no RAPL counters"
    assert {value for name, value in unmeasured.items() if name != "note"} == {None}


@pytest.mark.parametrize("per_hour", [1e-6, 1e6])
@pytest.mark.parametrize("rate_per_s", [1e-6, 1e9])
def test_every_price_and_rate_has_finite_figures(per_hour: float, rate_per_s: float) -> None:
    found = Spending(rate_per_s, 1.0, Price(per_hour)).as_document()
    assert "e+" not in json.dumps(found["cost"]["note"], allow_nan=False)
    assert float(three_significant(found["cost"]["per_million_predictions"]).replace(",", "")) >= 0
    json.dumps(found, allow_nan=False)


def test_amounts_have_three_significant_digits() -> None:
    values = [0.0000003472, 0.00347, 0.0999, 0.412, 1.0, 47.11, 1234.5, 0.0]
    shown = ["0.000000347", "0.00347", "0.0999", "0.412", "1.00", "47.1", "1,234", "0"]
    assert [three_significant(value) for value in values] == shown


def test_a_run_shows_cost_and_energy_in_every_form(run: Measured) -> None:
    outcome = judge_run(run, model="m", rows=4, seen=Seen(energy=ENERGY), price=PRICE)
    report = run_report(outcome, {})
    text, page = printed(report), render_page(report.page())
    lines = [
        "Cost: 2.50 EUR per million predictions, at 400 predictions/s and 3.6 EUR/h",
        "Cost: 10.0 EUR per million requests of 4 rows",
        "Work: 111 predictions/s per EUR/h",
        f"Energy: 0.125 J per prediction, at 50.0 W (package 40.0 W, dram 10.0 W; {WHOLE})",
    ]
    for line in lines:
        assert f"  {line}\n" in text
        assert line in junit_xml(report)
    for part in ("Cost and energy at 3.6 EUR/h", "EUR per million", "2.50 EUR", "package W", "whole machine"):
        assert part in page
    found = document(report)
    assert found["cost"]["per_million_predictions"] == pytest.approx(2.5)
    assert found["energy"]["watts"] == {"package": 40.0, "dram": 10.0}


def test_a_run_of_one_row_shows_no_cost_of_requests(run: Measured) -> None:
    text = printed(run_report(judge_run(run, model="m", rows=1, price=PRICE), {}))
    assert "Cost: 10.0 EUR per million predictions, at 100 predictions/s and 3.6 EUR/h\n" in text
    assert "million requests" not in text
    assert "Energy" not in text


def test_an_unknown_energy_has_a_reason_in_one_line(run: Measured) -> None:
    report = run_report(judge_run(run, model="m", rows=1, seen=Seen(energy=ABSENT), price=PRICE), {})
    assert f"  {NOT_MEASURED}\n" in printed(report)
    assert NOT_MEASURED in render_page(report.page())
    assert "Energy" not in junit_xml(report)
    # Most machines cannot measure it, and only a price asks for it.
    quiet = run_report(judge_run(run, model="m", rows=1, seen=Seen(energy=ABSENT)), {})
    assert "Energy" not in printed(quiet)
    assert "Cost and energy" not in render_page(quiet.page())


def test_a_run_without_success_has_no_cost() -> None:
    nothing = recorded_run(open_load(100), seconds=1.0, lines=("grpc",))
    empty = replace(nothing, span_s=0.0)
    report = run_report(judge_run(empty, model="m", rows=1, seen=Seen(energy=ENERGY), price=PRICE), {})
    text = printed(report)
    assert "  No cost: no request succeeded\n" in text
    assert "  Energy: no request succeeded, at 50.0 W (" in text
    assert "no request succeeded" in render_page(report.page())


def test_a_sweep_shows_the_cost_of_each_step() -> None:
    steps = [
        judge_run(recorded_run(open_load(rate)), model="m", rows=1, seen=Seen(energy=ENERGY), price=PRICE)
        for rate in (100, 200)
    ]
    report = sweep_report(steps, {})
    text, page = printed(report), render_page(report.page())
    for shown in ("EUR per million", "10.0", "5.00", "0.500", "0.250"):
        assert shown in text
        assert shown in page
    assert "Cost: 5.00 EUR per million predictions" in junit_xml(report)
    assert cells(report, "cost_per_million_predictions") == pytest.approx([10.0, 5.0], rel=0.01)
    assert cells(report, "joules_per_prediction") == pytest.approx([0.5, 0.25], rel=0.01)
    assert [step["cost"]["per_million_predictions"] for step in document(report)["steps"]] == pytest.approx(
        [10.0, 5.0], rel=0.01
    )


def test_a_search_shows_the_cost_at_the_highest_rate_that_holds() -> None:
    holds, fails = Probe(100, Outcome.HOLDS, "fine"), Probe(200, Outcome.FAILS, "late")
    tries = [(probe, recorded_run(open_load(probe.rate_per_s))) for probe in (holds, fails)]
    watched = [(probe, Watched.of(one, Seen(energy=ENERGY))) for probe, one in tries]
    searched = Searched(Found(holds, fails), watched, rows=2.0, price=PRICE)
    report = search_report("m", searched, [Threshold.parse("p99<=20ms")], {})
    text = printed(report)
    assert "Cost: 5.00 EUR per million predictions, at 200 predictions/s and 3.6 EUR/h\n" in text
    assert "Energy: 0.250 J per prediction" in text
    assert document(report)["cost"]["per_million_requests"] == pytest.approx(10.0)
    page = render_page(report.page())
    assert page.index("Cost and energy at 3.6 EUR/h") < page.index("EUR per million requests")
    assert "200.0/s" not in page[page.index("Cost and energy at") : page.index("Settings")]
    assert cells(report, "cost_per_million_predictions") == [pytest.approx(5.0, rel=0.01), None]
    assert cells(report, "joules_per_prediction") == [pytest.approx(0.25, rel=0.01), None]
    none = search_report("m", replace(searched, found=Found(None, fails)), [Threshold.parse("p99<=20ms")], {})
    assert (document(none)["cost"], document(none)["energy"]) == (None, None)
    assert "Cost:" not in printed(none)


def test_a_comparison_shows_both_sides_and_the_difference() -> None:
    pairs = [(recorded_run(open_load(100), seed=seed), recorded_run(open_load(200), seed=seed)) for seed in range(3)]
    sides = [Watched.together([Watched.of(pair[side], Seen(energy=ENERGY)) for pair in pairs]) for side in range(2)]
    outcome = judge_comparison(
        ("small", "large"), pairs, Rules(fail_if_unclear=False), sides=tuple(sides), prices=(Price(3.6), Price(14.4))
    )
    ratio = outcome.cost_ratio
    assert ratio is not None
    assert (ratio.a, ratio.b, ratio.ratio) == pytest.approx((10.0, 20.0, 2.0), rel=0.02)
    assert ratio.low <= ratio.ratio <= ratio.high
    report = compare_report("m", outcome, {})
    text, page = printed(report), render_page(report.page())
    assert "USD per million" in text
    assert "USD per million" in page
    assert "USD/h" in text
    found = document(report)
    assert found["cost_ratio"]["ratio"] == pytest.approx(2.0, rel=0.02)
    assert found["sides"]["a"]["cost"]["price_per_hour"] == 3.6
    assert found["sides"]["b"]["energy"]["joules_per_prediction"] == pytest.approx(0.25, rel=0.02)
    assert "A: Cost: 10.0 USD per million" in junit_xml(report)
    assert cells(report, "cost_per_million_predictions") == pytest.approx([10.0, 20.0] * 3, rel=0.02)
    without = compare_report("m", replace(outcome, prices=()), {})
    assert document(without)["cost_ratio"] is None
    assert "USD" not in printed(without)


def test_a_comparison_of_too_few_rounds_has_no_cost() -> None:
    pair = (recorded_run(open_load(100)), recorded_run(open_load(100)))
    outcome = judge_comparison(("1", "2"), [pair], prices=(PRICE, PRICE))
    assert (outcome.spendings, outcome.cost_ratio) == ((), None)
    assert "Cost" not in printed(compare_report("m", outcome, {}))


def test_a_soak_a_repetition_and_a_scenario_show_cost_and_energy(run: Measured) -> None:
    segments = Segments()
    for seed in range(3):
        segments.add(recorded_run(open_load(100), seed=seed), None)
    assert segments.total is not None
    of_run = judge_run(segments.total, model="m", rows=1, seen=Seen(energy=ENERGY), price=PRICE)
    once = judge_run(run, model="m", rows=1, seen=Seen(energy=ENERGY), price=PRICE).condensed()
    scenario = judge_mlperf(Scenario.OFFLINE, run, 8)
    watched = Watched.of(run, Seen(energy=ENERGY))
    reports = [
        (soak_report(judge_soak(of_run, segments, 3), {}), 10.0),
        (repetition_report(judge_repetition([once] * 6, (), Settling("p99", 0.05), 6), {}), 10.0),
        (mlperf_report("m", MlperfOutcome(scenario, watched, rows=8.0, price=PRICE), (), {}), 1.25),
    ]
    for report, cost in reports:
        line = f"Cost: {three_significant(cost)} EUR per million predictions"
        assert line in printed(report)
        assert line in junit_xml(report)
        assert "Energy: 0." in printed(report)
        assert "cost per million predictions" in render_page(report.page())
        assert "Cost and energy" in render_page(report.page())
        assert document(report)["cost"]["per_million_predictions"] == pytest.approx(cost, rel=0.01)
        assert document(report)["energy"]["watts"]["package"] == pytest.approx(40.0)
