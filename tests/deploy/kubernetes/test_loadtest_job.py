"""Tests for the Job of a load test: its pod may do little, and its command's exit code decides its status."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.deploy.dockerfile import ROOT
from tests.deploy.kustomize import KUBERNETES, OVERLAYS, build, of_kind, validate
from tests.deploy.manifests import Manifest, server_container
from tests.deploy.pod_security import excesses, violations
from tests.deploy.pod_server import run_container
from tests.support.saved_models import save_mlp, write_manifest

LOADTEST = build(OVERLAYS / "loadtest")
JOB = of_kind(LOADTEST, "Job")["tpuserve-loadtest"]["spec"]
POD = JOB["template"]["spec"]


def scenario() -> Manifest:
    """Return the scenario in the ConfigMap that the pod mounts."""
    (volume,) = (each for each in POD["volumes"] if "configMap" in each)
    document = yaml.safe_load(of_kind(LOADTEST, "ConfigMap")[volume["configMap"]["name"]]["data"]["scenario.yaml"])
    assert isinstance(document, dict)
    return document


def test_a_failed_load_test_fails_the_job_once() -> None:
    assert (POD["restartPolicy"], JOB["backoffLimit"]) == ("Never", 0)
    assert "ttlSecondsAfterFinished" not in JOB


def test_the_pod_meets_the_restricted_profile_and_is_no_server() -> None:
    assert (violations(POD), excesses(POD)) == ([], [])
    (server,) = of_kind(build(OVERLAYS / "cpu"), "Deployment").values()
    labels = server["spec"]["selector"]["matchLabels"]
    assert not labels.items() <= JOB["template"]["metadata"]["labels"].items()


def test_the_job_calls_the_service_of_the_base() -> None:
    (service,) = of_kind(build(OVERLAYS / "cpu"), "Service").values()
    ports = {each["name"]: each["port"] for each in service["spec"]["ports"]}
    name = service["metadata"]["name"]
    (container,) = POD["containers"]
    assert f"--grpc={name}:{ports['grpc']}" in container["args"]
    assert f"--rest=http://{name}:{ports['http']}" in container["args"]


def test_the_pages_patch_for_tls_and_keys_fits_the_job(tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/load-test/kubernetes.md").read_text(encoding="utf-8")
    scenario_text, overlay, patch = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "scenario.yaml").write_text(scenario_text)
    component = os.path.relpath(KUBERNETES, tmp_path.resolve())
    overlay = overlay.replace("../tpuserve/deploy/kubernetes", component)
    (tmp_path / "kustomization.yaml").write_text(overlay + patch)
    built = build(tmp_path)
    for each in built:
        validate(each)
    pod = of_kind(built, "Job")["tpuserve-loadtest"]["spec"]["template"]["spec"]
    assert (violations(pod), excesses(pod)) == ([], [])
    assert {each["name"] for each in pod["volumes"]} == {"tls", "scenario", "tmp"}
    assert {each["mountPath"] for each in pod["containers"][0]["volumeMounts"]} == {"/tls", "/scenario", "/tmp"}


@pytest.mark.slow
@pytest.mark.parametrize(("gate", "code"), [("error_rate>10%", 0), ("error_rate>0.1%", 97), ("p50>1us", 99)])
def test_the_exit_code_is_that_of_the_gates(tmp_path: Path, gate: str, code: int) -> None:
    write_manifest(save_mlp(tmp_path / "models/model/1"))
    load = {"rate": 20, "duration": "2s", "warm_up": "0s"}
    (tmp_path / "scenario.yaml").write_text(yaml.safe_dump({**scenario(), "load": load, "fail_if": [gate]}))
    with run_container(server_container(), {"/models": tmp_path / "models"}) as server:
        server.wait_for_probe("readinessProbe")
        (container,) = POD["containers"]
        local = {"/scenario/": f"{tmp_path}/", "http://tpuserve:8501": server.rest, "tpuserve:8500": server.grpc}
        # This machine runs other tests, too, which may hold up the load generator.
        arguments = [*container["args"], "--generator-limit=note"]
        for name, value in local.items():
            arguments = [each.replace(name, value) for each in arguments]
        program = Path(sys.executable).with_name(container["command"][0])
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
