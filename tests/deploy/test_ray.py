"""Tests for the RayService: its pods are valid for Kubernetes, and its parts agree with each other."""

import tomllib
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.deploy.dockerfile import ROOT
from tests.deploy.manifests import read

RAYSERVICE = read(ROOT / "deploy/ray/rayservice.yaml")
CLUSTER = RAYSERVICE["spec"]["rayClusterConfig"]
HEAD, (WORKERS,) = CLUSTER["headGroupSpec"], CLUSTER["workerGroupSpecs"]
SERVE: dict[str, Any] = yaml.safe_load(RAYSERVICE["spec"]["serveConfigV2"])

# The fields of KubeRay's CRD that are in use (ray-operator/apis/ray/v1).
FIELDS = {
    "spec": {"serveConfigV2", "rayClusterConfig"},
    "cluster": {"rayVersion", "enableInTreeAutoscaling", "headGroupSpec", "workerGroupSpecs"},
    "head": {"rayStartParams", "template"},
    "workers": {
        "groupName", "replicas", "minReplicas", "maxReplicas", "numOfHosts", "rayStartParams", "template",
    },
}  # fmt: skip


def container(group: dict[str, Any]) -> dict[str, Any]:
    (only,) = group["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def test_the_fields_are_those_of_the_crd() -> None:
    assert (RAYSERVICE["apiVersion"], RAYSERVICE["kind"]) == ("ray.io/v1", "RayService")
    assert set(RAYSERVICE["spec"]) == FIELDS["spec"]
    assert set(CLUSTER) == FIELDS["cluster"]
    assert set(HEAD) == FIELDS["head"]
    assert set(WORKERS) == FIELDS["workers"]
    assert all(isinstance(value, str) for group in (HEAD, WORKERS) for value in group["rayStartParams"].values())


@pytest.mark.parametrize("group", [HEAD, WORKERS], ids=["head", "workers"])
def test_pods_are_valid(group: dict[str, Any]) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, **group["template"]}
    kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)


def test_rays_version_is_that_of_the_extra() -> None:
    project = tomllib.loads((ROOT / "server/pyproject.toml").read_text())["project"]
    (requirement,) = project["optional-dependencies"]["ray"]
    minor = CLUSTER["rayVersion"].rpartition(".")[0]
    assert requirement.startswith(f"ray[serve]>={minor},<")


def test_a_replica_takes_the_whole_slice() -> None:
    (deployment,) = SERVE["applications"][0]["deployments"]
    resources = container(WORKERS)["resources"]
    chips = str(deployment["ray_actor_options"]["resources"]["TPU"])
    assert resources["requests"]["google.com/tpu"] == resources["limits"]["google.com/tpu"] == chips
    assert WORKERS["numOfHosts"] == 1
    assert deployment["ray_actor_options"]["num_cpus"] <= int(resources["requests"]["cpu"])
    assert deployment["autoscaling_config"]["max_replicas"] == WORKERS["maxReplicas"]


@pytest.mark.parametrize("group", [HEAD, WORKERS], ids=["head", "workers"])
def test_the_proxies_ports_are_named(group: dict[str, Any]) -> None:
    ports = {port["name"]: port["containerPort"] for port in container(group)["ports"]}
    assert (ports["serve"], ports["serve-grpc"]) == (SERVE["http_options"]["port"], SERVE["grpc_options"]["port"])


def test_a_replica_ends_before_its_pod() -> None:
    (deployment,) = SERVE["applications"][0]["deployments"]
    grace_s = WORKERS["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s > deployment["graceful_shutdown_timeout_s"] + 10
