"""The steps of the CI examples in deploy/ci, as scripts."""

from typing import Any

from tests.deploy.dockerfile import ROOT
from tests.deploy.manifests import read

CI = ROOT / "deploy/ci"


def workflow() -> dict[str, Any]:  # Any: YAML data, which tests index freely
    """Return the job of the GitHub workflow."""
    job: dict[str, Any] = read(CI / "github-actions.yaml")["jobs"]["release"]
    return job


def build() -> dict[str, Any]:
    """Return the configuration of Cloud Build."""
    return read(CI / "cloudbuild.yaml")


def workflow_scripts() -> dict[str, str]:
    """Return the shell scripts of the GitHub workflow by step, in order."""
    return {step["name"]: step["run"] for step in workflow()["steps"] if "run" in step}


def build_scripts() -> dict[str, str]:
    """Return the shell scripts of Cloud Build by step, in order."""
    return {step["id"]: step["script"] for step in build()["steps"] if "script" in step}
