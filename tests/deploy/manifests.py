"""The deployment files as Python data."""

from pathlib import Path
from typing import Any

import yaml

from tests.deploy.dockerfile import ROOT
from tpuserve_server.startup.command import serve

BASE = ROOT / "deploy/kubernetes/base"

# YAML data. The schemas check its shape, so the tests index it freely.
Manifest = dict[str, Any]


def read(path: Path) -> Manifest:
    """Return the only document of a file."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(document, dict), path
    return document


def base_manifests() -> dict[str, Manifest]:
    """Return the resources of the Kustomize base by kind. The base has one resource of each kind."""
    documents = [read(path) for path in sorted(BASE.glob("*.yaml")) if path.name != "kustomization.yaml"]
    by_kind = {document["kind"]: document for document in documents}
    assert len(by_kind) == len(documents)
    return by_kind


def server_container() -> Manifest:
    """Return the Deployment's only container."""
    (container,) = base_manifests()["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def parse_flags(arguments: list[str]) -> dict[str, Any]:  # Any: each flag's own type
    """Return the parameters that `tpuserve-serve` parses from the arguments, including defaults.

    Raises:
        click.UsageError: A flag is unknown or its value is invalid.
    """
    return serve.make_context("tpuserve serve", list(arguments)).params
