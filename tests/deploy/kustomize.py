"""The resources that `kubectl kustomize` builds, and the check of each against the schemas of its kind."""

import functools
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import kubernetes_validate
import yaml

from tests.deploy.custom_resources import SCHEMAS, validate_custom
from tests.deploy.dockerfile import ROOT
from tests.deploy.manifests import Manifest

KUBERNETES = ROOT / "deploy/kubernetes"
OVERLAYS = KUBERNETES / "overlays"
KUBECTL = Path(sys.executable).with_name("kubectl")
# The oldest Kubernetes that supports all fields in use, one between, and the newest with available schemas.
VERSIONS = ("1.30", "1.34", kubernetes_validate.latest_version())


@functools.cache
def build(folder: Path) -> tuple[Manifest, ...]:
    """Return the resources of a kustomization. Fails if kubectl prints a warning."""
    built = subprocess.run([KUBECTL, "kustomize", folder], capture_output=True, text=True, check=False)
    assert (built.returncode, built.stderr) == (0, "")
    return tuple(yaml.safe_load_all(built.stdout))


def build_with(components: Sequence[str], folder: Path, base: str = "base") -> tuple[Manifest, ...]:
    """Return the resources of a base with these components. Writes the kustomization into `folder`."""
    root = Path(os.path.relpath(KUBERNETES, folder.resolve()))
    kustomization = {
        "resources": [str(root / base)],
        "components": [str(root / "components" / one) for one in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return build(folder)


def of_kind(manifests: tuple[Manifest, ...], kind: str) -> dict[str, Manifest]:
    """Return the resources of one kind by name."""
    return {each["metadata"]["name"]: each for each in manifests if each["kind"] == kind}


def validate(manifest: Manifest) -> None:
    """Check a resource by the schema of its kind, strictly.

    Raises:
        kubernetes_validate.ValidationError, jsonschema.ValidationError: a field is missing, unknown or wrong.
    """
    if manifest["kind"] in SCHEMAS:
        validate_custom(manifest)
        return
    for version in VERSIONS:
        kubernetes_validate.validate(manifest, version, strict=True)
