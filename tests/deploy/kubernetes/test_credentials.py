"""Tests for the component of API keys: the server's file, and the key that Prometheus sends."""

from pathlib import Path

import pytest

from tests.deploy.kustomize import KUBERNETES, OVERLAYS, build, of_kind, validate
from tests.deploy.manifests import Manifest, parse_flags

KEYS = build(OVERLAYS / "credentials")
METRICS_KEY = {"name": "tpuserve-metrics-key", "key": "key"}


def only(manifests: tuple[Manifest, ...], kind: str) -> Manifest:
    """Return the only resource of a kind."""
    (found,) = of_kind(manifests, kind).values()
    return found


def test_server_reads_the_secrets_file() -> None:
    pod = only(KEYS, "Deployment")["spec"]["template"]["spec"]
    (volume,) = (each for each in pod["volumes"] if "secret" in each)
    assert volume["secret"] == {"secretName": "tpuserve-credentials"}
    (container,) = pod["containers"]
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == volume["name"])
    assert mount["readOnly"] is True
    folder, _, key = str(parse_flags(container["args"])["credentials_file"]).rpartition("/")
    assert (folder, key) == (mount["mountPath"], "credentials")


def test_prometheus_sends_a_key_and_no_resource_contains_one() -> None:
    (endpoint,) = only(KEYS, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["authorization"] == {"type": "Bearer", "credentials": METRICS_KEY}
    assert not of_kind(KEYS, "Secret")


def test_component_also_changes_googles_scraping(tmp_path: Path) -> None:
    overlay = tmp_path / "kustomization.yaml"
    folders = [KUBERNETES / each for each in ("base", "components/managed-prometheus", "components/credentials")]
    base, monitoring, credentials = (_relative(folder, tmp_path) for folder in folders)
    overlay.write_text(f"resources: [{base}]\ncomponents: [{monitoring}, {credentials}]\n")
    built = build(tmp_path)
    (endpoint,) = only(built, "PodMonitoring")["spec"]["endpoints"]
    assert endpoint["authorization"] == {"type": "Bearer", "credentials": {"secret": METRICS_KEY}}
    for manifest in built:
        validate(manifest)


@pytest.mark.parametrize("overlay", ["cpu", "monitoring"])
def test_other_overlays_need_no_key(overlay: str) -> None:
    assert "credentials" not in str(build(OVERLAYS / overlay))


def _relative(folder: Path, start: Path) -> str:
    """Return a path that kubectl accepts, which refuses absolute ones."""
    return "/".join([*[".."] * (len(start.resolve().parts) - 1), *folder.resolve().parts[1:]])
