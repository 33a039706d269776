"""Tests that every pod of the deployments meets the profile `restricted`, and that the check finds what it must."""

from typing import Any

import pytest

from tests.deploy.dockerfile import ROOT
from tests.deploy.kustomize import OVERLAYS, build
from tests.deploy.manifests import Manifest, read
from tests.deploy.pod_security import excesses, violations

RAY = read(ROOT / "deploy/ray/rayservice.yaml")["spec"]["rayClusterConfig"]


def pod_specs(document: object) -> list[dict[str, Any]]:
    """Return every PodSpec within a document: an object with containers."""
    if isinstance(document, list):
        return [found for each in document for found in pod_specs(each)]
    if not isinstance(document, dict):
        return []
    if isinstance(document.get("containers"), list):
        return [document]
    return [found for each in document.values() for found in pod_specs(each)]


def all_pods() -> dict[str, dict[str, Any]]:
    """Return the PodSpecs of every overlay, KServe's runtime and the RayService by name."""
    documents: dict[str, Manifest] = {}
    for overlay in sorted(path.parent for path in OVERLAYS.glob("*/kustomization.yaml")):
        for each in build(overlay):
            documents[f"{overlay.name} {each['kind']} {each['metadata']['name']}"] = each
    documents["kserve"] = read(ROOT / "deploy/kserve/clusterservingruntime.yaml")["spec"]
    documents["ray head"], documents["ray workers"] = RAY["headGroupSpec"], RAY["workerGroupSpecs"][0]
    return {name: pod for name, document in documents.items() for pod in pod_specs(document)}


PODS = all_pods()


def test_pods_of_every_deployment_are_found() -> None:
    names = " ".join(PODS)
    for name in ("cpu Deployment", "canary Deployment", "gke-tpu-v5e", "gke-multihost", "kserve", "ray workers"):
        assert name in names


@pytest.mark.parametrize("name", PODS)
def test_pod_meets_the_restricted_profile(name: str) -> None:
    assert violations(PODS[name]) == []


@pytest.mark.parametrize("name", [name for name in PODS if not name.startswith(("kserve", "ray"))])
def test_servers_have_a_read_only_root_and_no_token(name: str) -> None:
    assert excesses(PODS[name]) == []


def test_kserve_controls_the_token_and_the_root_is_read_only() -> None:
    # A ServingRuntime has no such field: the InferenceService's service account decides.
    assert excesses(PODS["kserve"]) == ["the token of a service account is mounted"]


def test_only_the_head_of_ray_has_a_token() -> None:
    # Ray writes its sessions below /tmp, and its head starts and stops workers.
    assert excesses(PODS["ray workers"]) == ["ray-worker: its root is writable"]
    assert "the token of a service account is mounted" in excesses(PODS["ray head"])


SAFE: dict[str, Any] = {
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [
        {"name": "c", "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}
    ],
}


def changed(pod: dict[str, Any], **context: object) -> dict[str, Any]:
    """Return the pod with another security context of its container."""
    [container] = pod["containers"]
    return {**pod, "containers": [{**container, "securityContext": {**container["securityContext"], **context}}]}


@pytest.mark.parametrize(
    ("pod", "wrong"),
    [
        (SAFE, []),
        ({**SAFE, "hostNetwork": True}, ["hostNetwork is true"]),
        ({**SAFE, "volumes": [{"name": "v", "hostPath": {}}]}, ["volume v is a hostPath"]),
        ({**SAFE, "securityContext": {"runAsNonRoot": True}}, ["c: seccompProfile is not set"]),
        (changed(SAFE, runAsNonRoot=False), ["c: runAsNonRoot is not true"]),
        (changed(SAFE, runAsUser=0), ["c: runAsUser is 0"]),
        (changed(SAFE, privileged=True), ["c: privileged is true"]),
        (changed(SAFE, allowPrivilegeEscalation=True), ["c: allowPrivilegeEscalation is not false"]),
        (changed(SAFE, capabilities={"drop": ["NET_RAW"]}), ["c: not all capabilities are dropped"]),
        (
            changed(SAFE, capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
            ["c: capabilities ['SYS_ADMIN'] are added"],
        ),
        (changed(SAFE, seccompProfile={"type": "Unconfined"}), ["c: seccompProfile is not set"]),
        ({**SAFE, "initContainers": [{"name": "i"}]}, ["i: allowPrivilegeEscalation is not false"]),
    ],
)
def test_check_finds_a_violation(pod: dict[str, Any], wrong: list[str]) -> None:
    assert violations(pod)[: len(wrong)] == wrong
    assert bool(violations(pod)) is bool(wrong)
