"""Tests for the servers of the overlay `canary`: both read the same volume, and each serves its own version."""

from pathlib import Path

import httpx
import pytest

from tests.deploy.kustomize import OVERLAYS, build, of_kind
from tests.deploy.manifests import Manifest
from tests.deploy.pod_server import PodServer, run_container
from tests.support.saved_models import save_mlp, write_manifest

pytestmark = [pytest.mark.slow]

CANARY = build(OVERLAYS / "canary")


def container(deployment: str) -> Manifest:
    """Return the container of a Deployment."""
    (found,) = of_kind(CANARY, "Deployment")[deployment]["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def served(server: PodServer) -> list[str]:
    """Return the versions that a server serves once it is ready."""
    server.wait_for_probe("readinessProbe")
    return [each["version"] for each in httpx.get(f"{server.rest}/v1/models/model").json()["model_version_status"]]


def test_each_server_serves_the_version_of_its_configuration(tmp_path: Path) -> None:
    for version in ("1", "2"):
        write_manifest(save_mlp(tmp_path / "volume/model" / version))
    for variant, version in (("stable", "1"), ("canary", "2")):
        config = of_kind(CANARY, "ConfigMap")[f"tpuserve-model-config-{variant}"]["data"]["models.config"]
        file = tmp_path / variant
        file.write_text(config.replace("/models", str(tmp_path / "volume")))
        paths: dict[str, Path | str] = {"/config/models.config": file, "/models": tmp_path / "volume"}
        with run_container(container(f"tpuserve-{variant}"), paths) as server:
            assert served(server) == [version]
