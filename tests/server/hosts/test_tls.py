"""Tests for TLS and mutual TLS on both hosts, with certificates of a test authority."""

import os
import socket
import ssl
import stat
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import httpx
import psutil
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from tests.server.hosts.grpc_calls import unary
from tests.server.hosts.host_process import PATIENCE_S, HostProcess, running
from tests.support.optional import needs
from tpuserve_server.hosts.application import HostError, HostOptions, TlsOptions
from tpuserve_server.hosts.certificates import check_usable

CA = trustme.CA()
SERVER = CA.issue_cert("127.0.0.1", "localhost")
CLIENT = CA.issue_cert("client@example.org")
STRANGER = trustme.CA().issue_cert("client@example.org")
EXPIRED = CA.issue_cert("client@example.org", not_after=datetime.now(UTC) - timedelta(days=1))


def key_of(certificate: trustme.LeafCert) -> str:
    return certificate.private_key_pem.bytes().decode()


def chain_of(certificate: trustme.LeafCert) -> str:
    return "".join(pem.bytes().decode() for pem in certificate.cert_chain_pems)


TLS = {"private_key": key_of(SERVER), "certificate_chain": chain_of(SERVER)}
MUTUAL = {**TLS, "client_ca": CA.cert_pem.bytes().decode()}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess]:
    path = tmp_path_factory.mktemp("socket") / "grpc.sock"
    with running(tls=TLS, grpc_socket_path=str(path)) as host:
        yield host


@pytest.fixture(scope="module")
def mutual_host() -> Iterator[HostProcess]:
    with running(tls=MUTUAL) as host:
        yield host


def secure_channel(address: str, certificate: trustme.LeafCert | None = None, name: str | None = None) -> grpc.Channel:
    own = (key_of(certificate).encode(), chain_of(certificate).encode()) if certificate else (None, None)
    options = [("grpc.ssl_target_name_override", name)] if name else []
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(CA.cert_pem.bytes(), *own), options)


def client_context(certificate: trustme.LeafCert | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=CA.cert_pem.bytes().decode())
    if certificate is not None:
        certificate.configure_cert(context)
    return context


def https(host: HostProcess) -> str:
    return host.rest.replace("http:", "https:")


def test_grpc_is_served_over_tls(host: HostProcess) -> None:
    with secure_channel(host.grpc) as channel:
        assert unary(channel, "Unary")(bytes(1 << 20)) == bytes(1 << 20)


def test_the_unix_socket_has_no_tls_and_the_log_warns(host: HostProcess) -> None:
    with grpc.insecure_channel(host.listening["grpc_socket"]) as channel:
        assert unary(channel, "Unary")(b"local") == b"local"
    host.wait_for_error("The UNIX socket has no TLS")


def test_rest_is_served_over_tls_and_says_so(host: HostProcess) -> None:
    assert host.listening["tls"] is True
    response = httpx.post(
        f"{https(host)}/v1/models/m:predict", content=b"body", verify=client_context(), timeout=PATIENCE_S
    )
    assert (response.status_code, response.content) == (200, b"body")


@needs("curl")
def test_curl_trusts_it_by_the_authority_alone(host: HostProcess, tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    CA.cert_pem.write_to_path(str(authority))
    curl = ["curl", "--silent", "--show-error", "--max-time", "60", "--data", "hello", "--cacert", str(authority)]
    assert subprocess.run([*curl, https(host)], capture_output=True, text=True).stdout == "hello"


def test_a_client_in_the_clear_gets_nothing(host: HostProcess) -> None:
    with grpc.insecure_channel(host.grpc) as channel, pytest.raises(grpc.RpcError) as raised:
        unary(channel, "Unary")(b"plain", timeout=PATIENCE_S)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(httpx.TransportError):
        httpx.post(host.rest, content=b"plain", timeout=PATIENCE_S)


def handshake(address: str, version: ssl.TLSVersion, certificate: trustme.LeafCert | None = None) -> str | None:
    """Connect with one version of TLS, and return the version that the server agreed to."""
    context = client_context(certificate)
    # OpenSSL's default level allows no version before TLS 1.2.
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    name, port = address.split(":")
    with (
        socket.create_connection((name, int(port)), timeout=PATIENCE_S) as connection,
        context.wrap_socket(connection, server_hostname=name) as secured,
    ):
        return secured.version()


PROTOCOLS = pytest.mark.parametrize("protocol", ["grpc", "rest"])


@PROTOCOLS
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1], ids=lambda version: version.name)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1.* is deprecated")
def test_old_tls_is_refused(host: HostProcess, protocol: str, version: ssl.TLSVersion) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError), match=r"(?i)alert (protocol version|handshake failure)"):
        handshake(host.listening[protocol], version)


@PROTOCOLS
@pytest.mark.parametrize(
    ("version", "agreed"), [(ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")]
)
def test_current_tls_is_accepted(host: HostProcess, protocol: str, version: ssl.TLSVersion, agreed: str) -> None:
    assert handshake(host.listening[protocol], version) == agreed


def test_the_serving_process_and_the_folder_tell_no_key(tmp_path: Path) -> None:
    with running({**os.environ, "TMPDIR": str(tmp_path)}, tls=TLS) as host:
        serving = psutil.Process(host.serving_pid())
        assert "PRIVATE KEY" not in f"{serving.environ()} {serving.cmdline()}"
        [folder] = tmp_path.iterdir()
        assert sorted(path.name for path in folder.iterdir()) == ["announcement.json", "lock"]
        assert "PRIVATE KEY" not in (folder / "announcement.json").read_text()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_client_with_a_certificate_of_the_authority_is_served(mutual_host: HostProcess) -> None:
    with secure_channel(mutual_host.grpc, CLIENT) as channel:
        assert unary(channel, "Unary")(b"known") == b"known"
    response = httpx.post(https(mutual_host), content=b"known", verify=client_context(CLIENT), timeout=PATIENCE_S)
    assert response.content == b"known"


@pytest.mark.parametrize(
    "certificate", [None, STRANGER, EXPIRED], ids=["without", "of another authority", "after its end"]
)
def test_a_client_without_such_a_certificate_is_refused(
    mutual_host: HostProcess, certificate: trustme.LeafCert | None
) -> None:
    with secure_channel(mutual_host.grpc, certificate) as channel, pytest.raises(grpc.RpcError) as raised:
        unary(channel, "Unary")(b"unknown", timeout=PATIENCE_S)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(httpx.TransportError):
        httpx.post(https(mutual_host), content=b"unknown", verify=client_context(certificate), timeout=PATIENCE_S)


def test_certificates_of_an_authority_are_usable() -> None:
    check_usable(TlsOptions(**TLS))
    check_usable(TlsOptions(**MUTUAL))


def test_an_encrypted_key_is_refused_without_a_question_on_the_terminal() -> None:
    key = serialization.load_pem_private_key(SERVER.private_key_pem.bytes(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    )
    with pytest.raises(HostError, match=r"^here is encrypted"):
        check_usable(TlsOptions(encrypted.decode(), TLS["certificate_chain"], key_name="here"))


def test_keys_are_not_shown() -> None:
    assert "PRIVATE KEY" not in repr(HostOptions(tls=TlsOptions(**MUTUAL)))


BAD_TEXTS = pytest.mark.parametrize(
    ("tls", "line"),
    [
        ({**TLS, "private_key": key_of(CLIENT)}, "server_key does not belong to server_cert."),
        ({**TLS, "private_key": "secret"}, "server_key is not a PEM private key"),
        ({**TLS, "certificate_chain": "-----BEGIN"}, "server_cert is not a PEM certificate"),
        ({**TLS, "client_ca": ""}, "custom_ca is not a PEM certificate"),
        (
            {**TLS, "certificate_chain": "/run/cert.pem"},
            "server_cert is not a PEM certificate (expected text with a line -----BEGIN, not a path): ",
        ),
    ],
    ids=["another's key", "no key", "no certificate", "no authority", "a path"],
)


@BAD_TEXTS
def test_what_cannot_be_used_has_a_reason(tls: dict[str, str], line: str) -> None:
    with pytest.raises(HostError) as raised:
        check_usable(TlsOptions(**tls))
    assert str(raised.value).startswith(line)
    assert "ssl.c" not in str(raised.value)


@BAD_TEXTS
def test_what_cannot_be_used_is_said_in_one_line_before_anything_starts(tls: dict[str, str], line: str) -> None:
    host = HostProcess({"bind_address": "127.0.0.1", "grpc_port": 0, "rest_port": 0, "tls": tls})
    assert host.exit_code() == 1
    [said] = host.errors
    assert said.startswith(f"tpuserve: {line}")
    assert "secret" not in said
