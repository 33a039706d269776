"""Tests that the overlay in deploy/README.md changes the fields that the README claims."""

import re
from functools import reduce
from typing import Any

import yaml

from tests.deploy.dockerfile import ROOT
from tests.deploy.manifests import BASE, base_manifests, read


def follow(at: Any, key: str) -> Any:  # noqa: ANN401 - a mapping or a list, as YAML has them
    """Follow one step of a JSON pointer."""
    return at[int(key)] if isinstance(at, list) else at[key]


def overlay() -> dict[str, list[dict[str, object]]]:
    """Return the kustomization in the README."""
    (shown,) = re.findall(
        r"```yaml\n(# kustomization.yaml\n.*?)```", (ROOT / "deploy/README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    document = yaml.safe_load(shown)
    assert isinstance(document, dict)
    return document


def test_overlay_replaces_the_image_the_base_names() -> None:
    (ours,) = overlay()["images"]
    (base,) = read(BASE / "kustomization.yaml")["images"]
    assert ours["name"] == base["name"]


def test_overlay_replaces_the_models_name() -> None:
    (patch,) = overlay()["patches"]
    deployment = base_manifests()["Deployment"]
    assert patch["target"] == {"kind": "Deployment", "name": deployment["metadata"]["name"]}
    (operation,) = yaml.safe_load(str(patch["patch"]))
    *way, last = operation["path"].strip("/").split("/")
    variable = reduce(follow, way, deployment)
    assert operation["op"] == "replace"
    assert (variable["name"], last) == ("MODEL_NAME", "value")
