"""Tests for the Kustomize base: valid for Kubernetes, and consistent with the server."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.dockerfile import ROOT, environment, instruction, read_dockerfile
from tests.deploy.manifests import BASE, base_manifests, parse_flags, read, server_container
from tpuserve_server.startup.command import serve

MANIFESTS = base_manifests()
POD = MANIFESTS["Deployment"]["spec"]["template"]["spec"]
IMAGE = read_dockerfile()


def test_yamllint_has_nothing_to_say() -> None:
    linted = subprocess.run(
        [Path(sys.executable).with_name("yamllint"), "--strict", "deploy", ".yamllint"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (linted.returncode, linted.stdout) == (0, "")


def test_kustomization_lists_every_file() -> None:
    listed = read(BASE / "kustomization.yaml")["resources"]
    assert sorted(listed) == sorted(path.name for path in BASE.iterdir() if path.name != "kustomization.yaml")


def test_kustomization_gives_the_deployments_image_its_tag() -> None:
    (image,) = read(BASE / "kustomization.yaml")["images"]
    assert image["name"] == server_container()["image"]
    assert image["newTag"] not in ("", "latest")


def test_selectors_find_the_pods() -> None:
    labels = MANIFESTS["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        MANIFESTS["Deployment"]["spec"]["selector"]["matchLabels"],
        MANIFESTS["Service"]["spec"]["selector"],
        MANIFESTS["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        MANIFESTS["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        *(each["labelSelector"]["matchLabels"] for each in POD["topologySpreadConstraints"]),
    ]
    for selector in selectors:
        assert selector
        assert selector.items() <= labels.items()


def test_ports_lead_from_the_service_to_what_the_image_exposes() -> None:
    named = {port["name"]: port["containerPort"] for port in server_container()["ports"]}
    assert named == {"grpc": 8500, "http": 8501}
    assert [str(port) for port in named.values()] == instruction(IMAGE.final, "EXPOSE").words
    served = {port["targetPort"]: port for port in MANIFESTS["Service"]["spec"]["ports"]}
    assert {name: port["port"] for name, port in served.items()} == named
    assert served["grpc"]["appProtocol"] == "kubernetes.io/h2c"


@pytest.mark.parametrize(
    ("probe", "path"),
    [("startupProbe", "/healthz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")],
)
def test_probe_asks_the_rest_port(probe: str, path: str) -> None:
    assert server_container()[probe]["httpGet"] == {"path": path, "port": "http"}


def patience_s(probe: dict[str, Any]) -> int:
    """Return how long a probe may fail before Kubernetes acts."""
    return int(probe["periodSeconds"]) * int(probe["failureThreshold"])


def test_start_up_may_take_minutes_and_a_restart_is_slower_than_a_withdrawal() -> None:
    container = server_container()
    assert patience_s(container["startupProbe"]) >= 300
    assert patience_s(container["livenessProbe"]) > patience_s(container["readinessProbe"])


def test_grace_period_outlasts_the_drain() -> None:
    flags = parse_flags(server_container()["args"])
    delay_s, timeout_s = flags["drain_delay_seconds"], flags["drain_timeout_seconds"]
    assert 5 <= delay_s <= 15, "endpoints are withdrawn in seconds; a longer delay only slows a roll-out"
    assert POD["terminationGracePeriodSeconds"] >= delay_s + timeout_s + 10


def test_service_cannot_set_the_servers_flags() -> None:
    # Kubernetes sets NAME_PORT=tcp://10.0.0.1:8500 in every pod of a namespace that has a Service NAME.
    service = MANIFESTS["Service"]["metadata"]["name"]
    assert serve.context_settings["auto_envvar_prefix"] != service.upper().replace("-", "_")
    assert POD["enableServiceLinks"] is False


def test_one_pod_at_a_time_is_disrupted_and_none_during_a_roll_out() -> None:
    assert MANIFESTS["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1
    assert MANIFESTS["HorizontalPodAutoscaler"]["spec"]["minReplicas"] >= 2
    assert MANIFESTS["Deployment"]["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_pod_meets_the_restricted_security_standard() -> None:
    user = instruction(IMAGE.final, "USER").text
    assert POD["securityContext"]["runAsNonRoot"] is True
    assert f"{POD['securityContext']['runAsUser']}:{POD['securityContext']['runAsGroup']}" == user
    assert POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    context = server_container()["securityContext"]
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}


def test_clients_reach_both_ports_and_the_server_connects_to_nothing() -> None:
    spec = MANIFESTS["NetworkPolicy"]["spec"]
    (rule,) = spec["ingress"]
    assert {port["port"] for port in rule["ports"]} == {port["containerPort"] for port in server_container()["ports"]}
    assert (set(spec["policyTypes"]), spec["egress"]) == ({"Ingress", "Egress"}, [])


def test_server_has_no_identity_towards_the_cluster() -> None:
    assert POD["serviceAccountName"] == MANIFESTS["ServiceAccount"]["metadata"]["name"]
    assert POD["automountServiceAccountToken"] is False


def test_models_are_mounted_where_the_image_looks_and_only_tmp_is_writable() -> None:
    mounts = {mount["name"]: mount for mount in server_container()["volumeMounts"]}
    assert mounts["models"]["mountPath"] == environment(IMAGE.final)["MODEL_BASE_PATH"]
    assert [mount["mountPath"] for mount in mounts.values() if not mount.get("readOnly")] == ["/tmp"]
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    assert volumes.keys() == mounts.keys()
    claim = volumes["models"]["persistentVolumeClaim"]["claimName"]
    assert claim == MANIFESTS["PersistentVolumeClaim"]["metadata"]["name"]


def test_memory_is_bounded_and_the_processor_is_not() -> None:
    resources = server_container()["resources"]
    assert resources["requests"].keys() == {"cpu", "memory", "ephemeral-storage"}
    assert resources["limits"].keys() == {"memory", "ephemeral-storage"}
