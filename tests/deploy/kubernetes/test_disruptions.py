"""Tests for voluntary disruptions: a node drain leaves a server, also of an overlay with one replica."""

import math
from pathlib import Path

import pytest

from tests.deploy.kubernetes.test_builds import SERVERS, folder_id
from tests.deploy.kustomize import OVERLAYS, build, of_kind
from tests.deploy.manifests import Manifest


def scaled(value: int | str, replicas: int) -> int:
    """Return a number or a percentage of the replicas, as Kubernetes' disruption controller rounds it: up."""
    return value if isinstance(value, int) else math.ceil(int(value.removesuffix("%")) * replicas / 100)


def allowed(budget: Manifest, replicas: int) -> int:
    """Return the number of healthy pods that may be evicted at once."""
    if "minAvailable" in budget:
        return max(0, replicas - scaled(budget["minAvailable"], replicas))
    return scaled(budget["maxUnavailable"], replicas)


def replicas_of(manifests: tuple[Manifest, ...], name: str) -> int:
    """Return the smallest number of servers of a Deployment."""
    scalers = {
        each["spec"]["scaleTargetRef"]["name"]: each for each in of_kind(manifests, "HorizontalPodAutoscaler").values()
    }
    if name in scalers:
        return int(scalers[name]["spec"]["minReplicas"])
    return int(of_kind(manifests, "Deployment")[name]["spec"]["replicas"])


@pytest.mark.parametrize("folder", [folder for folder in SERVERS if folder.name != "loadtest"], ids=folder_id)
def test_a_drain_leaves_a_server_and_ends_with_two_of_them(folder: Path) -> None:
    manifests = build(folder)
    for name, each in of_kind(manifests, "PodDisruptionBudget").items():
        replicas = replicas_of(manifests, name)
        assert replicas - allowed(each["spec"], replicas) >= 1, name
        # With a server more, a drain proceeds.
        assert allowed(each["spec"], max(2, replicas)) >= 1, name
        assert each["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_some_overlays_have_one_server() -> None:
    single = [name for name in ("gke-tpu-v5e", "gke-tpu-v6e") if replicas_of(build(OVERLAYS / name), "tpuserve") == 1]
    assert single == ["gke-tpu-v5e", "gke-tpu-v6e"]
    assert replicas_of(build(OVERLAYS / "canary"), "tpuserve-canary") == 1


@pytest.mark.parametrize("folder", [folder for folder in SERVERS if folder.name != "loadtest"], ids=folder_id)
def test_one_server_can_always_be_placed(folder: Path) -> None:
    for each in of_kind(build(folder), "Deployment").values():
        labels = each["spec"]["template"]["metadata"]["labels"]
        spread = each["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert {one["topologyKey"] for one in spread} == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}
        for one in spread:
            assert one["whenUnsatisfiable"] == "ScheduleAnyway"
            assert one["labelSelector"]["matchLabels"].items() <= labels.items()
