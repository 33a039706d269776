"""Tests for the files of Grafana: the dashboard is the generated one, and Grafana knows each of its fields."""

import copy
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.observability.dashboard.board import LOADTESTS, ROWS, SERVERS
from deploy.observability.dashboard.panels import WIDTH
from deploy.observability.dashboard.promql import FAILURES, PREDICTIONS
from tests.deploy.observability.alert_case import OBSERVABILITY
from tests.deploy.observability.dashboard_file import DASHBOARD, metric_names, panels, read_dashboard

GRAFANA = OBSERVABILITY / "grafana"


def test_dashboard_is_the_generated_one() -> None:
    for board in (SERVERS, LOADTESTS):
        written = (DASHBOARD.parent / f"{board.name}.json").read_text(encoding="utf-8")
        assert written == board.as_json(), "python -m deploy.observability.dashboard"


def test_grafanas_schema_has_every_field_of_the_dashboard() -> None:
    assert list(lost_fields(read_dashboard())) == []
    assert list(lost_fields(json.loads(LOADTESTS.as_json()))) == []


def test_a_field_outside_of_grafanas_schema_is_found() -> None:
    changed = copy.deepcopy(read_dashboard())
    changed["panels"][1]["fieldConfig"]["defaults"]["colour"] = "red"
    assert list(lost_fields(changed)) == [".panels.1.fieldConfig.defaults.colour"]


def test_panels_fill_the_grid_without_overlap() -> None:
    places = [_cells(panel["gridPos"]) for panel in read_dashboard()["panels"]]
    assert all(first.isdisjoint(second) for first, second in itertools.combinations(places, 2))
    assert all(0 <= column < WIDTH for cells in places for column, _ in cells)


def test_ids_are_unique_and_rows_have_their_titles() -> None:
    everything = read_dashboard()["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    assert [panel["title"] for panel in everything if panel["type"] == "row"] == [row.title for row in ROWS]


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_panel_says_what_it_shows_and_uses_the_chosen_data_source(panel: dict[str, Any]) -> None:
    assert len(panel["description"]) > 25
    assert panel["targets"]
    sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)


def test_latency_has_exemplars() -> None:
    (latency,) = (panel for panel in panels() if panel["title"] == "Latency")
    assert any(target["exemplar"] for target in latency["targets"])


def test_variables_choose_source_namespace_server_model_and_version() -> None:
    names = [variable["name"] for variable in read_dashboard()["templating"]["list"]]
    assert names == ["datasource", "cluster", "namespace", "pod", "instance", "model", "version"]


def test_recording_rules_and_panels_agree_on_predictions_and_failures() -> None:
    text = (OBSERVABILITY / "rules/recording.yaml").read_text(encoding="utf-8")
    assert text.count("method=") == text.count(PREDICTIONS)
    assert text.count("fault=") == text.count(FAILURES) == 2


def test_provisioning_links_exemplars_and_reads_the_dashboard() -> None:
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    (link,) = source["jsonData"]["exemplarTraceIdDestinations"]
    assert (source["type"], link["name"]) == ("prometheus", "trace_id")
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/tpuserve.yaml").read_text())["providers"]
    assert (provider["type"], provider["options"]) == ("file", {"path": "$TPUSERVE_DASHBOARDS"})


def test_names_are_found_outside_of_labels_and_strings() -> None:
    expr = 'sum by (up) (rate(tpuserve_a_total{up="process_b"}[5m])) / on (job) process_c or vector(0)'
    assert metric_names([expr]) == {"tpuserve_a_total", "process_c"}


def lost_fields(document: dict[str, Any]) -> Iterator[str]:
    """Yield the paths that grafana-foundation-sdk drops or changes, because Grafana's schema lacks them."""
    register_default_plugins()
    known = json.loads(json.dumps(Dashboard.from_json(document), cls=JSONEncoder))
    return _differences(document, known, "")


def _differences(written: Any, known: Any, path: str) -> Iterator[str]:  # noqa: ANN401 - any JSON values
    if isinstance(written, dict) and isinstance(known, dict):
        for key, value in written.items():
            yield from _differences(value, known.get(key), f"{path}.{key}")
    elif isinstance(written, list) and isinstance(known, list) and len(written) == len(known):
        for place, (one, other) in enumerate(zip(written, known, strict=True)):
            yield from _differences(one, other, f"{path}.{place}")
    elif written != known:
        yield path


def _cells(place: dict[str, int]) -> set[tuple[int, int]]:
    columns, lines = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
    return set(itertools.product(columns, lines))
