"""Tests for clients whose TLS settings do not fit a real server: the command says what to change."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner

from tests.e2e.running_server import RunningServer, run_configured_server, run_server
from tests.support.certificates import Authority, Pem
from tests.support.saved_models import save_mlp
from tpuserve_client.cli.status import status

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    save_mlp(folder / "mlp/1")
    (folder / "certificates").mkdir()
    return folder


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder / "certificates")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Iterator[RunningServer]:
    with run_server(folder / "mlp", folder / "plain.log") as server:
        yield server


@pytest.fixture(scope="module")
def secured(folder: Path, authority: Authority) -> Iterator[RunningServer]:
    """Yield a server with TLS, whose certificate is for 127.0.0.1 and localhost."""
    file = folder / "ssl.config"
    file.write_text(
        f"server_key: '{_escaped(authority.server, 'key')}' server_cert: '{_escaped(authority.server, 'cert')}'"
    )
    credentials = grpc.ssl_channel_credentials(authority.ca.read_bytes())
    flags = ("--model_name=m", f"--model_base_path={folder / 'mlp'}", f"--ssl_config_file={file}")
    with run_configured_server(folder / "secured.log", *flags, model="m", credentials=credentials) as server:
        yield server


def _escaped(pem: Pem, part: str) -> str:
    path: Path = getattr(pem, part)
    return path.read_text().replace("\n", "\\n")


def place(server: RunningServer, protocol: str) -> str:
    return server.grpc if protocol == "grpc" else server.rest.partition("://")[2]


def error_of(address: str, *options: str) -> str:
    result = CliRunner().invoke(status, ["m", "--address", address, *options])
    assert result.exit_code == 1
    return result.output


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_plain_client_of_a_server_with_tls_gets_the_address_to_use(secured: RunningServer, protocol: str) -> None:
    error = error_of(f"{protocol}://{place(secured, protocol)}")
    assert f"the server uses TLS, but {protocol}://{place(secured, protocol)} is a plaintext address; use " in error
    assert f"use {protocol}s://{place(secured, protocol)}" in error
    assert "Start the server" not in error


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_client_with_tls_of_a_plain_server_gets_the_address_to_use(plain: RunningServer, protocol: str) -> None:
    error = error_of(f"{protocol}s://{place(plain, protocol)}", "--timeout", "10")
    assert f"use {protocol}://{place(plain, protocol)}" in error
    assert "Start the server" not in error


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_unknown_authority_leads_to_the_option_for_it(
    secured: RunningServer, authority: Authority, protocol: str
) -> None:
    address = f"{protocol}s://{place(secured, protocol)}"
    error = error_of(address)
    assert "does not trust Test Authority" in error
    assert "set the authority's certificate with --ca" in error
    result = CliRunner().invoke(status, ["m", "--address", address, "--ca", str(authority.ca)])
    assert (result.exit_code, "AVAILABLE" in result.output) == (0, True)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_certificate_for_another_name_leads_to_the_option_for_it(
    secured: RunningServer, authority: Authority, protocol: str
) -> None:
    address = f"{protocol}s://{place(secured, protocol)}"
    error = error_of(address, "--ca", str(authority.ca), "--tls-server-name", "models.example")
    assert "the server's certificate is valid for 127.0.0.1, localhost, not for models.example" in error
    assert "--tls-server-name 127.0.0.1" in error
