"""Tests for the monitoring components: what they select, their rules, and the autoscaler's metric."""

import json
from pathlib import Path

import pytest
import yaml

from deploy.kubernetes.rule_resources import RESOURCES, RuleResource
from tests.deploy.dockerfile import ROOT
from tests.deploy.kustomize import KUBERNETES, OVERLAYS, build, of_kind
from tests.deploy.manifests import Manifest, base_manifests, read, server_container
from tests.deploy.observability.alert_case import RULES
from tests.deploy.observability.promtool import run_promtool
from tests.support.optional import needs

OPERATOR = build(OVERLAYS / "monitoring")
MANAGED = build(OVERLAYS / "gke-tpu-v5e")
ADAPTER = read(KUBERNETES / "prometheus-adapter.yaml")
RECORDED = "pod:tpuserve_demand_ratio"


def only(manifests: tuple[Manifest, ...], kind: str) -> Manifest:
    """Return the only resource of a kind."""
    (found,) = of_kind(manifests, kind).values()
    return found


def scaled_by(manifests: tuple[Manifest, ...]) -> str:
    """Return the name of the autoscaler's metric."""
    (metric,) = only(manifests, "HorizontalPodAutoscaler")["spec"]["metrics"]
    return str(metric["pods"]["metric"]["name"])


def adapter_query(pod: str) -> str:
    """Return the query that the adapter makes for a pod."""
    (rule,) = ADAPTER["rules"]
    query = str(rule["metricsQuery"])
    for placeholder, value in {"Series": RECORDED, "LabelMatchers": f'pod="{pod}"', "GroupBy": "pod"}.items():
        query = query.replace(f"<<.{placeholder}>>", value)
    return query


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.kind)
def test_rules_are_those_of_prometheus(resource: RuleResource) -> None:
    assert resource.path.read_text(encoding="utf-8") == resource.text(), (
        "run: python -m deploy.kubernetes.rule_resources"
    )
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    assert yaml.safe_load(resource.text())["spec"]["groups"] == groups


@needs("promtool")
@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.kind)
def test_promtool_accepts_the_rules(resource: RuleResource, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(read(resource.path)["spec"]))
    run_promtool("check", "rules", "--lint=all", "--lint-fatal", file)


def test_the_operator_scrapes_every_service_as_the_job_of_the_alerts() -> None:
    spec = only(OPERATOR, "ServiceMonitor")["spec"]
    service = only(OPERATOR, "Service")
    assert spec["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["metadata"]["labels"][spec["jobLabel"]] == "tpuserve"
    (endpoint,) = spec["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}


def test_google_scrapes_every_pod_as_the_job_of_the_alerts() -> None:
    monitoring = only(MANAGED, "PodMonitoring")
    template = only(MANAGED, "Deployment")["spec"]["template"]
    assert monitoring["metadata"]["name"] == "tpuserve"
    assert monitoring["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (endpoint,) = monitoring["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in server_container()["ports"]}


def test_canaries_are_scraped_too() -> None:
    labels = only(OPERATOR, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
    found = of_kind(build(OVERLAYS / "canary"), "Service").values()
    services = [each for each in found if each["spec"].get("clusterIP") != "None"]  # those only find the replicas
    assert all(labels.items() <= each["metadata"]["labels"].items() for each in services)


def test_dashboard_is_in_the_configmap_of_grafanas_sidecar() -> None:
    found = only(OPERATOR, "ConfigMap")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    dashboard = (ROOT / "deploy/observability/grafana/tpuserve.json").read_text(encoding="utf-8")
    assert json.loads(found["data"]["tpuserve.json"]) == json.loads(dashboard)
    # `kubectl apply` copies the resource into an annotation, which may have 256 KiB.
    assert len(dashboard) < 256 * 1024


def test_autoscalers_read_the_names_of_their_adapters() -> None:
    (rule,) = ADAPTER["rules"]
    assert scaled_by((base_manifests()["HorizontalPodAutoscaler"],)) == rule["name"]["as"]
    assert rule["seriesQuery"].startswith(f"{RECORDED}{{")
    assert scaled_by(MANAGED) == f"prometheus.googleapis.com|{RECORDED}|gauge"


@needs("promtool")
def test_autoscalers_metric_is_the_demand_of_each_pod(tmp_path: Path) -> None:
    series = {
        '{namespace="n",pod="busy",job="tpuserve"}': "4x120",
        '{namespace="n",pod="idle",job="tpuserve"}': "0x120",
    }
    expected = {"busy": 4, "idle": 0}
    test = {
        "rule_files": [str(path) for path in RULES],
        "tests": [
            {
                "interval": "1s",
                "input_series": [
                    {"series": f"tpuserve_demand_ratio{labels}", "values": values} for labels, values in series.items()
                ],
                "promql_expr_test": [
                    {
                        "expr": adapter_query(pod),
                        "eval_time": "120s",
                        "exp_samples": [{"labels": f'{{pod="{pod}"}}', "value": value}],
                    }
                    for pod, value in expected.items()
                ],
            }
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump(test))
    run_promtool("test", "rules", file)
