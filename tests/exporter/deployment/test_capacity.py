"""Tests for the capacity that a load test shows, and for the replicas that follow from it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tpuserve_exporter.deployment.capacity import Capacity, Demand
from tpuserve_exporter.errors import OptionConflict, SourceUnreadable

SEARCH = {"model": "digits", "objectives": ["p99<=20ms"], "rows_per_request": 2.5, "rate_per_s": 1043.5}
RUN = {
    "model": "digits", "exit_code": 0, "rows_per_request": 8, "total": {"rate_per_s": 400.0},
    "generator": {"trusted": True}, "gates": [{"gate": "p99>20ms", "figure": 12.0, "failed": False}],
}  # fmt: skip


def written(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document))
    return path


def test_a_search_shows_the_rate_that_holds_its_objectives(tmp_path: Path) -> None:
    found = Capacity.read(written(tmp_path / "search.json", SEARCH))
    assert found == Capacity(1043.5, 2.5, ("p99<=20ms",), "digits")


def test_a_run_shows_its_rate_if_its_gates_passed(tmp_path: Path) -> None:
    found = Capacity.read(written(tmp_path / "run.json", RUN))
    assert found == Capacity(400.0, 8, ("not p99>20ms",), "digits")


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({**SEARCH, "rate_per_s": None}, r"no rate holds p99<=20ms, so there is no capacity"),
        ({**RUN, "gates": []}, r"the run has no objective\. Use `tpuserve loadtest search --slo`"),
        ({**RUN, "exit_code": 99}, r"the run failed with exit code 99, so its rate is no capacity"),
        ({**RUN, "generator": {"trusted": False}}, r"the load generator was the limit"),
        ({**RUN, "total": {"rate_per_s": 0}}, r"no request of the run succeeded"),
    ],
)
def test_a_load_test_without_a_capacity_is_refused(tmp_path: Path, document: dict[str, Any], reason: str) -> None:
    with pytest.raises(OptionConflict, match=rf"report\.json: {reason}"):
        Capacity.read(written(tmp_path / "report.json", document))


@pytest.mark.parametrize(
    "document",
    [
        [], "text", {}, {**SEARCH, "rate_per_s": -1}, {**SEARCH, "rate_per_s": "NaN"}, {**SEARCH, "objectives": []},
        {**SEARCH, "objectives": ["p99<=20ms\nreplicas: 9"]}, {**SEARCH, "rows_per_request": 0},
    ],
)  # fmt: skip
def test_other_documents_are_no_report(tmp_path: Path, document: object) -> None:
    with pytest.raises(SourceUnreadable, match="is not a document of `tpuserve loadtest search --json`"):
        Capacity.read(written(tmp_path / "report.json", document))


def test_a_missing_report_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceUnreadable, match=r"cannot read .*none\.json: No such file"):
        Capacity.read(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("rate_per_s", "capacity_per_s", "for_load"),
    [(5000, 1043.5, 5), (5000, 1000, 5), (5000.1, 1000, 6), (1, 1000, 1), (1e-12, 1000, 1), (1.1, 0.1, 11)],
)
def test_replicas_hold_the_rate_with_headroom(rate_per_s: float, capacity_per_s: float, for_load: int) -> None:
    demand = Demand(rate_per_s, Capacity(capacity_per_s, 1, ("p99<=20ms",), "digits"), headroom=2)
    assert (demand.for_load, demand.replicas) == (for_load, for_load + 2)
    assert demand.utilization == pytest.approx(rate_per_s / capacity_per_s / (for_load + 2))
