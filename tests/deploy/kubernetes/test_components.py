"""Tests for the components that no overlay has: KEDA's autoscaler, and the limit of locked memory."""

from pathlib import Path

import pytest
import yaml

from tests.deploy.kustomize import KUBERNETES, build_with, of_kind, validate
from tests.deploy.pod_security import violations

RULES = KUBERNETES.parent / "observability/rules/autoscaling.yaml"


def test_keda_replaces_the_autoscaler_with_the_same_limits_and_behavior(tmp_path: Path) -> None:
    (scaler,) = of_kind(build_with((), tmp_path), "HorizontalPodAutoscaler").values()
    (tmp_path / "keda").mkdir()
    manifests = build_with(("keda",), tmp_path / "keda")
    for each in manifests:
        validate(each)
    assert not of_kind(manifests, "HorizontalPodAutoscaler")
    (scaled,) = (each["spec"] for each in of_kind(manifests, "ScaledObject").values())
    assert scaled["scaleTargetRef"]["name"] in of_kind(manifests, "Deployment")
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (
        scaler["spec"]["minReplicas"],
        scaler["spec"]["maxReplicas"],
    )
    behavior = scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior == scaler["spec"]["behavior"]
    validate({**scaler, "spec": {**scaler["spec"], "behavior": behavior}})
    target = scaler["spec"]["metrics"][0]["pods"]["target"]["averageValue"]
    (trigger,) = scaled["triggers"]
    assert float(trigger["metadata"]["threshold"]) == int(target.removesuffix("m")) / 1000
    # Prometheus records the series of the query.
    assert "pod:tpuserve_demand_ratio" in RULES.read_text()
    assert "pod:tpuserve_demand_ratio{" in trigger["metadata"]["query"]


def test_keda_keeps_the_servers_if_prometheus_has_no_series(tmp_path: Path) -> None:
    (scaled,) = of_kind(build_with(("keda",), tmp_path), "ScaledObject").values()
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert trigger["metricType"] == "AverageValue"


@pytest.mark.parametrize("base", ["overlays/gke-tpu-v5e", "overlays/gke-multihost"])
def test_memlock_gives_root_one_capability_and_nothing_else(tmp_path: Path, base: str) -> None:
    (deployment,) = of_kind(build_with(("memlock",), tmp_path, base), "Deployment").values()
    validate(deployment)
    spec = deployment["spec"]["template"]["spec"]
    assert violations(spec) == [
        "server: runAsUser is 0",
        "server: runAsNonRoot is not true",
        "server: capabilities ['SYS_RESOURCE'] are added",
    ]
    assert spec["containers"][0]["securityContext"]["capabilities"] == {"add": ["SYS_RESOURCE"], "drop": ["ALL"]}


def test_each_component_builds_alone(tmp_path: Path) -> None:
    for name in sorted(path.name for path in (KUBERNETES / "components").iterdir()):
        folder = tmp_path / name
        folder.mkdir()
        assert yaml.safe_dump_all(build_with((name,), folder))
