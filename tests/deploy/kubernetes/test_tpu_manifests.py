"""Tests that the TPU pods of the overlays, of KServe and of Ray fit the table of TPUs."""

import pytest
import yaml
from click.testing import CliRunner, Result

from tests.deploy.dockerfile import ROOT
from tests.deploy.kustomize import OVERLAYS, build
from tpuserve_exporter.command.deploying import deploy


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(deploy, ["render", *arguments], input=stdin)


@pytest.mark.parametrize("overlay", ["gke-tpu-v5e", "gke-tpu-v6e", "gke-multihost"])
def test_the_overlays_fit(overlay: str) -> None:
    done = run("--validate", "-", stdin=yaml.safe_dump_all(build(OVERLAYS / overlay)))
    assert (done.exit_code, done.output) == (
        0,
        "Deployment tpuserve: selectors, topology, chips and tolerations fit GKE's TPUs\n",
    )


@pytest.mark.parametrize("path", ["deploy/kserve/inferenceservice-tpu.yaml", "deploy/ray/rayservice.yaml"])
def test_the_resources_of_kserve_and_ray_fit(path: str) -> None:
    assert run("--validate", str(ROOT / path)).exit_code == 0
