"""Tests for `tpuserve deploy render --validate`: TPU pods against the table that the preflight and the render use."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tpuserve_exporter.command.deploying import deploy
from tpuserve_exporter.deployment.manifest_check import ACCELERATOR, RESOURCE, TOPOLOGY, check_manifest
from tpuserve_exporter.errors import ManifestUnfit
from tpuserve_exporter.options.tpu import FAMILIES

TOLERATION = {"key": RESOURCE, "operator": "Exists", "effect": "NoSchedule"}


def pod(accelerator: str, topology: str, chips: int | str) -> dict[str, Any]:
    resources = {"requests": {RESOURCE: str(chips)}, "limits": {RESOURCE: str(chips)}}
    spec = {
        "nodeSelector": {ACCELERATOR: accelerator, TOPOLOGY: topology},
        "tolerations": [TOLERATION],
        "containers": [{"name": "sidecar"}, {"name": "server", "resources": resources}],
    }
    return {"kind": "Deployment", "metadata": {"name": "digits"}, "spec": {"template": {"spec": spec}}}


def problems_of(manifest: dict[str, Any]) -> str:
    with pytest.raises(ManifestUnfit) as raised:
        check_manifest(yaml.safe_dump(manifest), "built.yaml")
    return str(raised.value)


def run(*arguments: str | Path, stdin: str = "") -> Result:
    return CliRunner().invoke(deploy, ["render", *map(str, arguments)], input=stdin)


@pytest.mark.parametrize(
    ("accelerator", "topology", "chips"),
    [
        *(
            (family.gke_accelerator, machine.grid, int(machine.machine_type.rpartition("-")[2][:-1]))
            for family in FAMILIES.values()
            for machine in family.machines
        ),
        ("tpu-v5-lite-podslice", "2x4", 4),
        ("tpu-v5-lite-podslice", "16x16", 4),
        ("tpu-v4-podslice", "2x2x2", 4),
        ("tpu-v5p-slice", "8x16x20", 4),
        ("tpu7x", "4x4x4", 4),
    ],
)
def test_every_slice_of_the_table_fits(accelerator: str, topology: str, chips: int) -> None:
    assert check_manifest(yaml.safe_dump(pod(accelerator, topology, chips)), "-") == ["Deployment digits"]


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        (
            pod("tpu-v6e-podslice", "2x2", 4),
            f"nodeSelector {ACCELERATOR} is tpu-v6e-podslice. Use one of tpu-v4-podslice, tpu-v5-lite-podslice, "
            "tpu-v5p-slice, tpu-v6e-slice, tpu7x",
        ),
        (pod("tpu-v6e-slice", "2x2x1", 4), f"nodeSelector {TOPOLOGY} is 2x2x1, and v6e has no such slice. Use"),
        (pod("tpu-v5p-slice", "4x4x6", 4), f"{TOPOLOGY} is 4x4x6, and v5p has no such slice. Use 2x2x1 for one"),
        (pod("tpu-v6e-slice", "2x2", 1), f"{RESOURCE} is 1, and the slice of v6e:2x2 has 4 chips. Request all of them"),
        (pod("tpu7x", "2x2x2", 8), f"{RESOURCE} is 8, and each of its 2 hosts of tpu7x:2x2x2 has 4 chips"),
        (pod("tpu7x", "2x2x1", "many"), f"its limits and requests of {RESOURCE} must be the same positive number"),
    ],
)  # fmt: skip
def test_a_contradiction_is_named_with_what_to_write(manifest: dict[str, Any], problem: str) -> None:
    assert problems_of(manifest).startswith("built.yaml does not fit GKE's TPUs:\n  Deployment digits: ")
    assert problem in problems_of(manifest)


def test_a_pod_without_a_toleration_or_selectors_is_refused() -> None:
    manifest = pod("tpu-v6e-slice", "2x2", 4)
    spec = manifest["spec"]["template"]["spec"]
    spec["tolerations"] = [{**TOLERATION, "effect": "NoExecute"}, {**TOLERATION, "key": "other"}]
    assert "no toleration of the taint google.com/tpu. Add key google.com/tpu, operator Exists" in problems_of(manifest)
    unselected = copy.deepcopy(manifest)
    del unselected["spec"]["template"]["spec"]["nodeSelector"]
    assert f"nodeSelector {ACCELERATOR} is missing" in problems_of(unselected)
    del spec["containers"][1]["resources"]
    assert f"its limits and requests of {RESOURCE} must be" in problems_of(manifest)


def test_a_container_with_blank_resources_is_no_error() -> None:
    manifest = pod("tpu-v6e-slice", "2x2", 4)
    containers = manifest["spec"]["template"]["spec"]["containers"]
    containers[0]["resources"] = None
    containers.append({"name": "proxy", "resources": {"requests": None, "limits": None}})
    assert check_manifest(yaml.safe_dump(manifest), "-") == ["Deployment digits"]


def test_exit_codes_distinguish_a_misfit_from_a_file_without_a_pod(tmp_path: Path) -> None:
    manifest = tmp_path / "built.yaml"
    manifest.write_text(yaml.safe_dump(pod("tpu-v6e-slice", "2x2", 8)))
    misfit = run("--validate", manifest)
    assert misfit.exit_code == 4
    assert misfit.stderr.startswith(
        f"error: {manifest} does not fit GKE's TPUs:\n  Deployment digits: google.com/tpu is 8"
    )
    manifest.write_text("kind: ConfigMap\n")
    assert run("--validate", manifest).exit_code == 6
    assert "standard input has no pod with a TPU" in run("--validate", "-").output
    manifest.write_text("a: [")
    broken = run("--validate", manifest)
    assert (broken.exit_code, "is not YAML" in broken.stderr) == (6, True)
