"""Tests for each kustomization: kubectl builds it, every resource is valid, and every reference has a target."""

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import jsonschema
import kubernetes_validate
import pytest

from tests.deploy.dockerfile import ROOT
from tests.deploy.kustomize import KUBERNETES, OVERLAYS, build, of_kind, validate
from tests.deploy.manifests import Manifest, parse_flags

if TYPE_CHECKING:
    from collections.abc import Callable

SERVERS = (KUBERNETES / "base", *sorted(path for path in OVERLAYS.iterdir() if path.is_dir()))
ALL = (*SERVERS, ROOT / "deploy/observability", ROOT / "deploy/kserve")


def pods(folder: Path) -> dict[str, Manifest]:
    """Return the pod templates of a build by Deployment."""
    return {name: each["spec"]["template"] for name, each in of_kind(build(folder), "Deployment").items()}


def selected(folder: Path, labels: dict[str, str]) -> list[str]:
    """Return the Deployments whose pods have these labels."""
    return [name for name, pod in pods(folder).items() if labels.items() <= pod["metadata"]["labels"].items()]


def folder_id(path: Path) -> str:
    """Return the name of a kustomization for the tests' names."""
    return path.name


@pytest.mark.parametrize("folder", ALL, ids=folder_id)
def test_every_resource_is_valid(folder: Path) -> None:
    names = [(each["kind"], each["metadata"]["name"]) for each in build(folder)]
    assert len(set(names)) == len(names)
    for manifest in build(folder):
        validate(manifest)


def test_every_kustomization_is_built_by_a_test() -> None:
    written = {path.parent for path in (ROOT / "deploy").rglob("kustomization.yaml")}
    components = {path for path in written if path.parent == KUBERNETES / "components"}
    assert written - components - set(ALL) == {OVERLAYS / "canary/stable", OVERLAYS / "canary/candidate"}
    used = "".join(path.read_text() for path in OVERLAYS.rglob("kustomization.yaml"))
    used += "".join(path.read_text() for path in (KUBERNETES / "components").rglob("kustomization.yaml"))
    alone = {KUBERNETES / "components" / name for name in ("keda", "memlock")}
    assert {path for path in components if f"/{path.name}\n" not in used} == alone


@pytest.mark.parametrize("folder", SERVERS, ids=folder_id)
def test_pods_find_their_account_claim_and_configuration(folder: Path) -> None:
    for pod in pods(folder).values():
        assert pod["spec"]["serviceAccountName"] in of_kind(build(folder), "ServiceAccount")
        for volume in pod["spec"]["volumes"]:
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in of_kind(build(folder), "PersistentVolumeClaim")
            if "configMap" in volume:
                assert volume["configMap"]["name"] in of_kind(build(folder), "ConfigMap")


@pytest.mark.parametrize("folder", SERVERS, ids=folder_id)
def test_every_claim_is_mounted(folder: Path) -> None:
    mounted = {
        volume["persistentVolumeClaim"]["claimName"]
        for pod in pods(folder).values()
        for volume in pod["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert mounted == set(of_kind(build(folder), "PersistentVolumeClaim"))


@pytest.mark.parametrize("folder", SERVERS, ids=folder_id)
def test_each_deployment_has_a_service_a_budget_and_a_policy_of_its_own(folder: Path) -> None:
    selectors: dict[str, Callable[[Manifest], Manifest]] = {
        "Service": lambda spec: spec["selector"],
        "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
        "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"],
        "Deployment": lambda spec: spec["selector"]["matchLabels"],
    }
    for name in pods(folder):
        for kind, selector in selectors.items():
            assert selected(folder, selector(of_kind(build(folder), kind)[name]["spec"])) == [name], (kind, name)
    for policy in of_kind(build(folder), "NetworkPolicy").values():
        assert selected(folder, policy["spec"]["podSelector"]["matchLabels"]), policy["metadata"]["name"]


@pytest.mark.parametrize("folder", SERVERS, ids=folder_id)
def test_an_autoscaler_and_a_number_of_replicas_exclude_each_other(folder: Path) -> None:
    scaled = {
        each["spec"]["scaleTargetRef"]["name"] for each in of_kind(build(folder), "HorizontalPodAutoscaler").values()
    }
    fixed = {name for name, each in of_kind(build(folder), "Deployment").items() if "replicas" in each["spec"]}
    assert scaled | fixed == set(pods(folder))
    assert not scaled & fixed


@pytest.mark.parametrize("folder", SERVERS, ids=folder_id)
def test_servers_parse_their_arguments(folder: Path) -> None:
    for pod in pods(folder).values():
        (container,) = pod["spec"]["containers"]
        flags = parse_flags(container["args"])
        assert pod["spec"]["terminationGracePeriodSeconds"] >= (
            flags["drain_delay_seconds"] + flags["drain_timeout_seconds"] + 10
        )
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        for flag in ("storage_cache_dir", "compilation_cache_dir"):
            volumes = {each["name"] for each in pod["spec"]["volumes"]}
            assert flags[flag] is None or mounts[str(PurePosixPath(flags[flag]).parent)] in volumes
        for flag in ("model_config_file", "credentials_file"):
            assert flags[flag] is None or str(PurePosixPath(flags[flag]).parent) in mounts


@pytest.mark.parametrize("folder", SERVERS, ids=folder_id)
def test_pods_meet_the_restricted_security_standard(folder: Path) -> None:
    for pod in pods(folder).values():
        (container,) = pod["spec"]["containers"]
        context = container["securityContext"]
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)


@pytest.mark.parametrize(
    ("folder", "kind", "spec"),
    [
        ("base", "NetworkPolicy", {"podSelektor": {}}),
        ("overlays/monitoring", "ServiceMonitor", {"jobLabels": "name"}),
        ("overlays/canary", "HTTPRoute", {"hostnames": ["UPPER.example.com"]}),
        ("overlays/gke-tpu-v5e", "PodMonitoring", {"endpoints": [{"port": "http"}]}),
    ],
)
def test_a_mistake_would_be_found(folder: str, kind: str, spec: dict[str, Any]) -> None:
    (manifest,) = (each for each in build(KUBERNETES / folder) if each["kind"] == kind)
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        validate({**manifest, "spec": {**manifest["spec"], **spec}})
