"""Tests for the component of TLS: its probes, its Secret's mode, and the server that it starts."""

from pathlib import Path

import httpx
import pytest

from tests.deploy.kustomize import OVERLAYS, build, of_kind
from tests.deploy.manifests import parse_flags
from tests.deploy.pod_server import run_container
from tests.support.certificates import Authority
from tests.support.saved_models import save_mlp, write_manifest
from tpuserve_server.startup.file_checks import describe_exposure

BUILT = build(OVERLAYS / "tls")
(DEPLOYMENT,) = of_kind(BUILT, "Deployment").values()
POD = DEPLOYMENT["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


def test_every_probe_and_every_scrape_uses_tls() -> None:
    probes = [CONTAINER[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert [probe["scheme"] for probe in probes] == ["HTTPS"] * 3
    assert [probe["path"] for probe in probes] == ["/healthz", "/readyz", "/healthz"]
    (service,) = of_kind(BUILT, "Service").values()
    assert [port["appProtocol"] for port in service["spec"]["ports"]] == ["https", "https"]
    (monitor,) = of_kind(BUILT, "ServiceMonitor").values()
    assert [endpoint["scheme"] for endpoint in monitor["spec"]["endpoints"]] == ["https"]


def test_key_is_for_the_server_alone() -> None:
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    assert volumes["tls"]["secret"] == {"secretName": "tpuserve-tls", "defaultMode": 0o440}
    assert POD["securityContext"]["fsGroup"] == POD["securityContext"]["runAsGroup"]
    mounts = {mount["name"]: mount for mount in CONTAINER["volumeMounts"]}
    assert mounts["tls"]["readOnly"] is True
    flags, folder = parse_flags(CONTAINER["args"]), mounts["tls"]["mountPath"]
    # The keys of a Secret of the type kubernetes.io/tls.
    assert (str(flags["tls_cert_file"]), str(flags["tls_key_file"])) == (f"{folder}/tls.crt", f"{folder}/tls.key")


def test_mode_of_the_mount_has_no_warning(tmp_path: Path) -> None:
    file = tmp_path / "tls.key"
    file.touch()
    file.chmod(0o440)
    assert describe_exposure(file) == ""


@pytest.mark.slow
def test_server_of_the_pod_answers_over_tls(tmp_path: Path) -> None:
    write_manifest(save_mlp(tmp_path / "models/model/1", seed=1))
    folder = tmp_path / "tls"
    folder.mkdir()
    own = Authority(folder).server
    own.key.chmod(0o440)
    paths = {"/models": tmp_path / "models", "/tls/tls.crt": own.cert, "/tls/tls.key": own.key}
    with run_container(CONTAINER, paths) as server:
        server.wait_for_probe("readinessProbe")
        with pytest.raises(httpx.TransportError):
            httpx.get(server.rest.replace("https:", "http:"), timeout=30)
        assert not [line for line in server.command.lines if "WARNING" in line]
