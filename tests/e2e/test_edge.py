"""Tests of a server with exactly the flags of the profile `edge`, as docs/how-to/operate/edge.md starts it."""

import contextlib
import json
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import psutil
import pytest

from tests.e2e.running_server import EXECUTABLE
from tests.support.access import KeyFile
from tests.support.certificates import Authority
from tests.support.free_ports import free_ports
from tests.support.saved_models import save_mlp, write_manifest
from tpuserve_client import Client, Tls
from tpuserve_server.startup.validation import profile_values

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group(__name__)]

BODY = {"instances": [[0.5] * 64]}


@dataclass
class Edge:
    """A server with the profile, its authority and the keys of its clients."""

    process: subprocess.Popen[bytes]
    authority: Authority
    keys: KeyFile
    grpc: str
    rest: str
    log: Path

    @property
    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.authority.ca)

    def ask(self, method: str, path: str, name: str | None = None, body: object = None) -> httpx.Response:
        headers = None if name is None else self.keys.bearer(name)
        url = f"https://{self.rest}{path}"
        return httpx.request(method, url, headers=headers, json=body, verify=self.trust, timeout=60)


def write_ssl_config(folder: Path, authority: Authority) -> Path:
    key, certificate = (json.dumps(path.read_text()) for path in (authority.server.key, authority.server.cert))
    config = folder / "tls.config"
    config.touch(mode=0o600)
    config.write_text(f"server_key: {key} server_cert: {certificate}")
    return config


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    folder = tmp_path_factory.mktemp("edge")
    write_manifest(save_mlp(folder / "models/m/1", seed=1))
    (folder / "certificates").mkdir()
    authority = Authority(folder / "certificates")
    keys = KeyFile(folder / "clients")
    keys.add("shop", "predict")
    keys.add("admin", "predict,read,control")
    ports = free_ports(2)
    command = [
        str(EXECUTABLE), "--profile=edge", f"--ssl_config_file={write_ssl_config(folder, authority)}",
        f"--credentials_file={keys.path}", "--model_name=m", f"--model_base_path={folder}/models/m",
        "--bind_address=127.0.0.1", f"--port={ports[0]}", f"--rest_api_port={ports[1]}",
        "--ports_wait_for_models",
    ]  # fmt: skip
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    server = Edge(process, authority, keys, f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}", log)
    try:
        while True:
            assert process.poll() is None, log.read_text()
            with contextlib.suppress(httpx.TransportError), contextlib.suppress(subprocess.TimeoutExpired):
                if server.ask("GET", "/readyz").status_code == 200:
                    break
                process.wait(0.1)
        yield server
    finally:
        process.terminate()
        process.wait(120)


def test_clients_need_tls_and_a_key_over_both_protocols(edge: Edge) -> None:
    path = "/v1/models/m:predict"
    assert edge.ask("POST", path, None, BODY).status_code == 401
    assert edge.ask("POST", path, "shop", BODY).status_code == 200
    with pytest.raises(httpx.TransportError):
        httpx.post(f"http://{edge.rest}{path}", json=BODY, headers=edge.keys.bearer("shop"), timeout=60)
    x = {"x": np.full((1, 64), 0.5, np.float32)}
    tls = Tls(ca=edge.authority.ca)
    with Client(f"grpcs://{edge.grpc}", tls=tls, headers=edge.keys.bearer("shop")) as client:
        assert client.predict("m", x)
    with Client(f"grpcs://{edge.grpc}", tls=tls) as stranger, pytest.raises(Exception, match="credential"):
        stranger.predict("m", x)


def test_only_clients_with_the_role_read_the_status_and_control(edge: Edge) -> None:
    for path in ("/metrics", "/debug/status", "/v1/models/m", "/console"):
        assert edge.ask("GET", path).status_code == 401, path
        assert edge.ask("GET", path, "shop").status_code == 403, path
        assert edge.ask("GET", path, "admin").status_code == 200, path
    assert edge.ask("POST", "/v2/repository/models/m/unload", "shop").status_code == 403


def test_status_shows_the_effective_values(edge: Edge) -> None:
    status = edge.ask("GET", "/debug/status", "admin").json()
    flags = {flag["name"]: flag.get("value") for flag in status["flags"]}
    assert flags["profile"] == "edge"
    assert flags.keys() >= profile_values("edge").keys()
    assert (flags["max_request_bytes"], flags["enable_profiler"]) == (8 << 20, False)
    assert status["server"]["certificates"]["reload_failed"] is False
    assert not [key for key in edge.keys.keys.values() if key in json.dumps(status)]


def test_log_names_the_profile_and_warns_of_nothing(edge: Edge) -> None:
    lines = edge.log.read_text().splitlines()
    assert any("Profile edge: --header_timeout_seconds=15" in line for line in lines)
    assert [line for line in lines if " WARNING " in line or " ERROR " in line] == []


def test_no_process_of_the_server_writes_core_dumps(edge: Edge) -> None:
    family = [psutil.Process(edge.process.pid), *psutil.Process(edge.process.pid).children(recursive=True)]
    assert len(family) == 2
    for process in family:
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        [core] = [line for line in limits.splitlines() if line.startswith("Max core file size")]
        assert core.split()[4] == "0"


def test_a_large_request_is_refused_before_it_is_read(edge: Edge) -> None:
    url = f"https://{edge.rest}/v1/models/m:predict"
    headers = {**edge.keys.bearer("shop"), "content-length": str(9 << 20)}
    response = httpx.post(url, content=bytes(9 << 20), headers=headers, verify=edge.trust, timeout=60)
    assert response.status_code == 413
    credentials = grpc.ssl_channel_credentials(edge.authority.ca.read_bytes())
    with grpc.secure_channel(edge.grpc, credentials) as channel:
        # grpcio's stubs have no types for calls over bytes.
        call: Any = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        with pytest.raises(grpc.RpcError) as raised:
            call(bytes(9 << 20), metadata=list(edge.keys.bearer("shop").items()), timeout=60)
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
