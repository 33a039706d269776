"""Tests for the manifests in the package of the exporter, and for an overlay that a wheel alone renders."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import yaml

from deploy.kubernetes.packaged import PACKAGED, packaged_files
from tests.deploy.dockerfile import ROOT
from tests.deploy.kustomize import KUBERNETES, build, of_kind, validate
from tests.exporter.checked_manifests import write_checked
from tests.support.wheels import UV

PROGRAM = """
import tpuserve_exporter
from tpuserve_exporter.command.deploying import main
print(tpuserve_exporter.__file__)
main()
"""


def test_every_file_of_base_and_components_is_linked() -> None:
    linked = {path.relative_to(PACKAGED): path.resolve() for path in PACKAGED.rglob("*") if not path.is_dir()}
    assert linked == {name: KUBERNETES / name for name in packaged_files()}, "run python -m deploy.kubernetes.packaged"
    assert Path("base/deployment.yaml") in linked


def test_a_wheel_renders_an_overlay_without_a_checkout(tmp_path: Path) -> None:
    build_wheel = (
        UV,
        "build",
        "--package",
        "tpuserve-exporter",
        "--quiet",
        "--offline",
        "--wheel",
        "--out-dir",
        tmp_path,
    )
    subprocess.run(build_wheel, cwd=ROOT, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    write_checked(tmp_path / "models/digits/3")
    arguments = ("render", "--version", "models/digits/3", "--tpu", "v5e:1x1", "--output", "overlays/digits")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "installed"))
    resources = build(tmp_path / "overlays/digits")
    for resource in resources:
        validate(resource)
    (deployment,) = of_kind(resources, "Deployment").values()
    assert "--device=tpu" in deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    # A second overlay adds a component of the copies.
    kustomization = {"resources": ["../digits"], "components": ["../digits/manifests/components/bucket"]}
    (tmp_path / "overlays/production").mkdir()
    (tmp_path / "overlays/production/kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    assert not of_kind(build(tmp_path / "overlays/production"), "PersistentVolumeClaim")
