"""Tests for overlays of `tpuserve deploy render`: Kustomize builds them, and Kubernetes and the server accept them.

`tests/exporter/test_deploy_render.py` tests the command.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tests.deploy.dockerfile import ROOT
from tests.deploy.kustomize import KUBERNETES, build, validate
from tests.deploy.manifests import Manifest, parse_flags
from tests.exporter.checked_manifests import preflight_rows, write_checked
from tpuserve_exporter.command.deploying import deploy
from tpuserve_exporter.deployment.manifest_check import check_manifest
from tpuserve_formats.mesh_shape import MeshShape

SEARCH = {"model": "digits", "objectives": ["p99<=20ms"], "rows_per_request": 1, "rate_per_s": 1043.5}
DEMAND = ("--loadtest", "search.json", "--rate", "5000")


@dataclass(frozen=True, slots=True)
class Built:
    """The resources that Kustomize makes of an overlay, by kind, and the overlay's directory."""

    overlay: Path
    resources: Mapping[str, Manifest]

    @property
    def pod(self) -> Manifest:
        spec = self.resources["Deployment"]["spec"]["template"]["spec"]
        assert isinstance(spec, dict)
        return spec

    @property
    def server(self) -> Manifest:
        (container,) = self.pod["containers"]
        assert isinstance(container, dict)
        return container


Render = Callable[..., Built]


@pytest.fixture
def render(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Render:
    """Return a function that renders an overlay of a checked version, and builds it with Kustomize."""
    (tmp_path / "search.json").write_text(json.dumps(SEARCH))
    monkeypatch.chdir(tmp_path)

    def run(
        *options: str,
        tpu: str = "v5e:1x1",
        mesh: Mapping[str, int] | None = None,
        compile_s: float = 1.5,
        model: str = "digits",
        output: str = "overlay",
        manifests: Path | None = KUBERNETES,
    ) -> Built:
        rows = preflight_rows(tpu, mesh=mesh, compile_s=compile_s)
        version = write_checked(tmp_path / model / "3", rows)
        base = () if manifests is None else ("--manifests", str(manifests))
        arguments = ("--version", str(version), "--tpu", tpu, *base, "--output", output)
        done = CliRunner().invoke(deploy, ["render", *arguments, *options], standalone_mode=False)
        assert (done.exception, done.return_value) == (None, 0), done.stderr
        resources = build(tmp_path / output)
        by_kind = {resource["kind"]: resource for resource in resources}
        assert len(by_kind) == len(resources)
        return Built(tmp_path / output, by_kind)

    return run


@pytest.mark.parametrize(
    ("tpu", "mesh", "accelerator", "chips"),
    [
        ("v5e:1x1", {"data": 1, "model": 1}, "tpu-v5-lite-podslice", "1"),
        ("v5e:2x2", {"data": 4, "model": 1}, "tpu-v5-lite-podslice", "4"),
        ("v5e:2x4", {"data": 2, "model": 4}, "tpu-v5-lite-podslice", "8"),
        ("v6e:1x1", {"data": 1, "model": 1}, "tpu-v6e-slice", "1"),
        ("v6e:2x2", {"data": 1, "model": 4}, "tpu-v6e-slice", "4"),
        ("v6e:2x4", {"data": 8, "model": 1}, "tpu-v6e-slice", "8"),
        ("v4:2x2x1", {"data": 8, "model": 1}, "tpu-v4-podslice", "4"),
        ("v5p:2x2x1", {"data": 4, "model": 1}, "tpu-v5p-slice", "4"),
        ("tpu7x:1x1x1", {"data": 2, "model": 1}, "tpu7x", "1"),
        ("tpu7x:2x2x1", {"data": 2, "model": 4}, "tpu7x", "4"),
    ],
)
def test_a_render_for_each_machine_is_valid(
    render: Render, tpu: str, mesh: dict[str, int], accelerator: str, chips: str
) -> None:
    built = render(*DEMAND, tpu=tpu, mesh=mesh)
    for resource in built.resources.values():
        validate(resource)
    linted = subprocess.run(
        [Path(sys.executable).with_name("yamllint"), "--strict", "--config-file", ROOT / ".yamllint", built.overlay],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (linted.returncode, linted.stdout) == (0, "")
    assert built.pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": tpu.partition(":")[2],
    }
    resources = built.server["resources"]
    assert resources["requests"]["google.com/tpu"] == resources["limits"]["google.com/tpu"] == chips
    assert {"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"} in built.pod["tolerations"]
    flags = parse_flags(built.server["args"])
    assert flags["device"] == "tpu"
    shape = MeshShape.parse(flags["mesh"]) if flags["mesh"] else MeshShape()
    assert (shape.data, shape.model) == (mesh["data"], mesh["model"])
    assert check_manifest(yaml.safe_dump_all(built.resources.values()), "-") == ["Deployment tpuserve"]


def test_the_autoscaler_keeps_the_replicas_of_the_demand(render: Render) -> None:
    built = render(*DEMAND, "--headroom", "2", "--max-replicas", "10")
    scaler = built.resources["HorizontalPodAutoscaler"]["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (7, 10)
    assert "replicas" not in built.resources["Deployment"]["spec"]


@pytest.mark.parametrize(("replicas", "budget"), [("1", {"minAvailable": "50%"}), ("3", {"maxUnavailable": 1})])
def test_a_drain_leaves_the_only_server(render: Render, replicas: str, budget: dict[str, object]) -> None:
    spec = render("--replicas", replicas).resources["PodDisruptionBudget"]["spec"]
    assert {name: spec[name] for name in ("minAvailable", "maxUnavailable") if name in spec} == budget


def test_a_long_compilation_extends_the_budgets_of_load_and_rollout(render: Render) -> None:
    built = render(compile_s=1000.0)
    flags = parse_flags(built.server["args"])
    # Two programs, at twice the time of the preflight.
    assert 4120 <= flags["load_timeout_seconds"] <= 4121
    assert built.resources["Deployment"]["spec"]["progressDeadlineSeconds"] == flags["load_timeout_seconds"] + 600


def test_a_short_compilation_keeps_the_servers_default(render: Render) -> None:
    assert parse_flags(render().server["args"])["load_timeout_seconds"] == parse_flags([])["load_timeout_seconds"]


@pytest.mark.parametrize("model", ["on", "1e3", "2026-01-01", "-"])
def test_a_model_name_stays_a_string(render: Render, model: str) -> None:
    names = {one["name"]: one.get("value") for one in render(model=model).server["env"]}
    assert names["MODEL_NAME"] == model


def test_an_output_directory_may_have_any_name(render: Render) -> None:
    assert render(output="an über 'overlay': #1").resources.keys() >= {"Deployment", "HorizontalPodAutoscaler"}


@pytest.mark.parametrize(
    "image",
    [
        "tpuserve-server:0.1.0-tpu",
        "registry.example.com:5000/team/tpuserve-server:123",
        f"registry.example.com/tpuserve-server@sha256:{'a' * 64}",
    ],
)
def test_the_image_is_the_requested_one(render: Render, image: str) -> None:
    assert render("--image", image).server["image"] == image


def test_the_image_is_the_components_by_default(render: Render) -> None:
    assert render().server["image"].endswith("-tpu")


def test_an_overlay_of_the_rendered_one_serves_from_a_bucket_as_the_guide_shows(render: Render, tmp_path: Path) -> None:
    guide = (ROOT / "docs/how-to/deploy/render.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n# overlays/production/kustomization\.yaml\n(.*?)```", guide, re.DOTALL)
    render(output="overlays/digits", manifests=None)
    production = tmp_path / "overlays/production"
    production.mkdir()
    (production / "kustomization.yaml").write_text(example)
    resources = build(production)
    for resource in resources:
        validate(resource)
    (deployment,) = (each for each in resources if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {"MODEL_NAME": "digits", "MODEL_BASE_PATH": "gs://my-bucket/models"}.items() <= {
        each["name"]: each["value"] for each in container["env"]
    }.items()
    assert parse_flags(container["args"])["device"] == "tpu"
