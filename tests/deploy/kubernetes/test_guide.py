"""Tests for the overlays in docs/how-to/deploy/kubernetes.md: kubectl builds each, with the described changes."""

import re
import shutil
from pathlib import Path

import pytest

from tests.deploy.dockerfile import ROOT
from tests.deploy.kustomize import OVERLAYS, build, of_kind, validate
from tests.deploy.manifests import Manifest, parse_flags
from tpuserve_exporter.options.tpu import FAMILIES, count_chips

GUIDE = (ROOT / "docs/how-to/deploy/kubernetes.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"```yaml\n(# kustomization.yaml\n.*?)```", GUIDE, re.DOTALL)
# The rows of the table of machines: machine type, accelerator, topology, chips and mesh.
MACHINES = re.findall(r"\| `((?:ct|tpu)\S+)` \| `(\S+)` \| `(\S+)` \| (\d) \| `?([a-z]+(?:=\d)?)`? \|", GUIDE)


@pytest.fixture
def overlays(tmp_path: Path) -> Path:
    """Return an empty directory next to a clone of this repository."""
    shutil.copytree(ROOT / "deploy", tmp_path / "tpuserve/deploy")
    (tmp_path / "overlay").mkdir()
    return tmp_path / "overlay"


def container(manifests: tuple[Manifest, ...]) -> Manifest:
    """Return the container of the only Deployment."""
    (deployment,) = of_kind(manifests, "Deployment").values()
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("text", SHOWN, ids=lambda text: re.findall("kubernetes/(.*)", text)[-1])
def test_shown_overlay_is_valid(text: str, overlays: Path) -> None:
    (overlays / "kustomization.yaml").write_text(text)
    (overlays / "models.config").write_text("model_config_list {}")
    built = build(overlays)
    for manifest in built:
        validate(manifest)
    server = container(built)
    parse_flags(server["args"])
    variables = {each["name"]: each["value"] for each in server["env"]}
    assert variables["MODEL_NAME"] == ("digits" if "MODEL_NAME" in text else "model")
    if "newName" in text:
        assert server["image"] == ":".join(re.findall("new(?:Name|Tag): (.*)", text))
    if "gs://" in text:
        assert variables["MODEL_BASE_PATH"] == "gs://my-bucket/models"
        assert not of_kind(built, "PersistentVolumeClaim")
    if "models.config" in text:
        assert set(of_kind(built, "ConfigMap")) == {"tpuserve-model-config"}


def test_guide_shows_overlays() -> None:
    assert len(SHOWN) == 6


def test_machines_have_the_chips_of_their_topology() -> None:
    assert len(MACHINES) == 10
    table = {
        (machine.machine_type, family.gke_accelerator, machine.grid): family.devices_per_chip
        for family in FAMILIES.values()
        for machine in family.machines
    }
    assert {row[:3] for row in MACHINES} == table.keys()
    for machine_type, accelerator, topology, chips, mesh in MACHINES:
        assert count_chips(topology) == int(chips)
        devices = int(chips) * table[machine_type, accelerator, topology]
        assert mesh == ("omitted" if devices == 1 else f"data={devices}")
    for overlay in ("gke-tpu-v5e", "gke-tpu-v6e"):
        (deployment,) = of_kind(build(OVERLAYS / overlay), "Deployment").values()
        selector = deployment["spec"]["template"]["spec"]["nodeSelector"]
        assert tuple(selector.values()) in [row[1:3] for row in MACHINES]


def test_guide_names_every_overlay_and_component() -> None:
    for folder in (*OVERLAYS.iterdir(), *(OVERLAYS.parent / "components").iterdir()):
        # The TPU overlays contain the component `tpu`.
        assert f"/{folder.name}`" in GUIDE or f"`{folder.name}`" in GUIDE or folder.name == "tpu", folder.name
