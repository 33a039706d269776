"""Tests with promtool for a fleet: two namespaces with two replicas each, in which one must not hide the other."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.observability.alert_case import OBSERVABILITY, RULES, alert_rules
from tests.deploy.observability.promtool import run_promtool
from tests.support.optional import needs

_LEVELS = {
    "namespace_job": {"cluster", "namespace", "job"},
    "namespace_job_model": {"cluster", "namespace", "job", "model_name"},
}
_TARGET = 'job="tpuserve", model_name="m", version="1", method="Predict", protocol="grpc"'


def _requests(namespace: str, pod: str, code: str, per_minute: int, cluster: str = "eu") -> dict[str, str]:
    """Return the requests of one pod over 2 hours."""
    labels = f'cluster="{cluster}", namespace="{namespace}", pod="{pod}", instance="{namespace}-{pod}:8501"'
    series = {f'tpuserve_requests_total{{{labels}, {_TARGET}, code="{code}"}}': f"0+{per_minute}x120"}
    if code != "OK":
        failed = f'tpuserve_failed_requests_total{{{labels}, {_TARGET}, code="{code}", fault="server"}}'
        series[failed] = f"0+{per_minute}x120"
    return series


# A load test in staging at 5,000 requests per second, and production at 2 per second.
LOAD_TEST = _requests("staging", "a", "OK", 150_000) | _requests("staging", "b", "OK", 150_000)
FAILING = _requests("prod", "a", "INTERNAL", 60) | _requests("prod", "b", "INTERNAL", 60)


def _check(folder: Path, series: Mapping[str, str], alert: str, expected: list[dict[str, Any]]) -> None:
    """Fail unless exactly these alerts of the name fire after 2 hours."""
    file = folder / "tests.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "rule_files": [str(path) for path in RULES],
                "evaluation_interval": "1m",
                "tests": [
                    {
                        "interval": "1m",
                        "input_series": [{"series": name, "values": values} for name, values in series.items()],
                        "alert_rule_test": [{"alertname": alert, "eval_time": "2h", "exp_alerts": expected}],
                    }
                ],
            }
        )
    )
    run_promtool("test", "rules", file)


def _alert(name: str, description: str, **labels: str) -> dict[str, Any]:
    rule = alert_rules()[name]
    return {
        "exp_labels": {"job": "tpuserve", **labels, **rule["labels"]},
        "exp_annotations": {**rule["annotations"], "description": description},
    }


@needs("promtool")
def test_load_test_in_staging_hides_no_failures_of_production(tmp_path: Path) -> None:
    name = "TpuserveAvailabilityBurnsFast"
    expected = _alert(name, "100% of the predictions of tpuserve in prod fail.", cluster="eu", namespace="prod")
    _check(tmp_path, LOAD_TEST | FAILING, name, [expected])


@needs("promtool")
def test_model_of_the_same_name_in_another_namespace_hides_no_failures(tmp_path: Path) -> None:
    name = "TpuserveModelFails"
    description = "100% of the predictions of m in prod fail."
    expected = _alert(name, description, cluster="eu", namespace="prod", model_name="m")
    _check(tmp_path, LOAD_TEST | FAILING, name, [expected])


@needs("promtool")
def test_namespace_of_the_same_name_in_another_cluster_hides_no_failures(tmp_path: Path) -> None:
    name = "TpuserveAvailabilityBurnsFast"
    expected = _alert(name, "100% of the predictions of tpuserve in prod fail.", cluster="eu", namespace="prod")
    _check(tmp_path, FAILING | _requests("prod", "a", "OK", 150_000, cluster="us"), name, [expected])


@needs("promtool")
def test_failures_of_one_replica_count_against_both(tmp_path: Path) -> None:
    name = "TpuserveAvailabilityBurnsFast"
    one_fails = _requests("prod", "a", "INTERNAL", 60) | _requests("prod", "b", "OK", 60)
    expected = _alert(name, "50% of the predictions of tpuserve in prod fail.", cluster="eu", namespace="prod")
    _check(tmp_path, LOAD_TEST | one_fails, name, [expected])


@needs("promtool")
def test_alert_on_a_server_names_its_pod(tmp_path: Path) -> None:
    labels = {"cluster": "eu", "namespace": "prod", "pod": "b", "instance": "10.0.0.2:8501"}
    matchers = ", ".join(f'{name}="{value}"' for name, value in labels.items())
    series = {f'tpuserve_budget_refusals_total{{{matchers}, job="tpuserve", budget="receiving"}}': "0+3x120"}
    description = "10.0.0.2:8501 refused 30 requests in 10 minutes by the budget receiving."
    name = "TpuserveBudgetRefusals"
    _check(tmp_path, series, name, [_alert(name, description, **labels, budget="receiving")])


def _recorded() -> list[dict[str, str]]:
    groups = yaml.safe_load((OBSERVABILITY / "rules/recording.yaml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.mark.parametrize("rule", _recorded(), ids=lambda rule: rule["record"])
def test_level_of_a_recorded_name_is_the_labels_of_its_sums(rule: dict[str, str]) -> None:
    labels = _LEVELS[rule["record"].partition(":")[0]]
    sums = [part.partition(")")[0].split(", ") for part in rule["expr"].split("sum by (")[1:]]
    assert all(set(names) - {"le"} == labels for names in sums)
