"""Tests that a row finds false reports, and what excuses them."""

from dataclasses import replace

import pytest

from tests.loadtests.truth.row import Pair, Row
from tests.loadtests.truth.table import print_table

TRUE = Row(
    shape="closed users",
    behaviour="gRPC, constant",
    planned=None,
    logged=100,
    counts={"sent": Pair(100, 100), "errors": Pair(0, 0)},
    close={"p50": Pair(40.5, 40.0), "p99": Pair(42.0, 41.0)},
    exit_code=0,
    expected_exit=0,
    lateness_ms=0.6,
)
LATE = {"p50": Pair(42.0, 40.0)}


def test_a_true_report_is_exact() -> None:
    assert TRUE.verdict == "exact"
    assert TRUE.is_right
    assert TRUE.deviation == pytest.approx(0.0244, abs=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"counts": {"sent": Pair(101, 100)}},
        {"exit_code": 1},
        {"findings": ("p50 is drifting, but its interval includes no change",)},
        {"close": LATE},
        {"floors": {"p50": 40.9}},  # no client can observe less than the server's own latency
        {"misjudged": ("verdict same, expected worse",)},
        {"close": {"p50": Pair(None, 40.0)}},
    ],
)
def test_a_false_report_is_wrong(changes: dict[str, object]) -> None:
    row = replace(TRUE, **changes)  # type: ignore[arg-type]  # values of several types
    assert not row.is_right
    assert row.verdict.startswith("WRONG: ")


@pytest.mark.parametrize(
    "changes",
    [
        {"reasons": ("1 % of requests were sent late",), "exit_code": 98},
        {"lateness_ms": 9.0},
        {"machine": "busy machine"},
    ],
)
def test_an_excuse_covers_figures_and_no_counts(changes: dict[str, object]) -> None:
    row = replace(TRUE, close=LATE, **changes)  # type: ignore[arg-type]  # values of several types
    assert row.is_right
    assert row.verdict == row.excuse != ""
    assert not replace(row, counts={"sent": Pair(101, 100)}).is_right


def test_a_distrusted_run_exits_with_98() -> None:
    assert not replace(TRUE, reasons=("arrivals were dropped",)).is_right


def test_the_table_counts_wrong_rows(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([TRUE, replace(TRUE, close=LATE), replace(TRUE, close=LATE, lateness_ms=9.0)])
    printed = capsys.readouterr().out
    assert "3 rows: 1 exact, 1 excused, 1 WRONG" in printed
    assert "| 100/100" in printed
