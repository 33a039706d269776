"""Tests for TLS and custom headers of both clients, against real servers of both protocols."""

from pathlib import Path

import pytest

from tests.clients.clients_under_test import Clock, make_client
from tests.clients.model_server import ModelServer, serving
from tests.support.certificates import Authority, ServerTls
from tpuserve_client import Client, InvalidArgument, Tls, Unavailable

MODEL = "affine"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def test_server_of_a_trusted_authority_is_asked(authority: Authority, kind: str, protocol: str) -> None:
    with (
        serving(ModelServer(), protocol, ServerTls(authority.server)) as address,
        make_client(kind, address, tls=Tls(ca=authority.ca)) as client,
    ):
        assert client.metadata(MODEL).version == 7


def test_server_of_an_authority_nobody_knows_is_not_asked(
    authority: Authority, kind: str, protocol: str, clock: Clock
) -> None:
    server = ModelServer()
    with (
        serving(server, protocol, ServerTls(authority.server)) as address,
        make_client(kind, address, clock) as client,
        pytest.raises(Unavailable, match=r"(?i)certificate.verify.failed"),
    ):
        client.metadata(MODEL)
    assert server.served == []


def test_what_the_system_trusts_is_asked_for_by_both_protocols(
    authority: Authority, kind: str, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))
    with (
        serving(ModelServer(), protocol, ServerTls(authority.server)) as address,
        make_client(kind, address) as client,
    ):
        assert client.metadata(MODEL).version == 7


@pytest.mark.parametrize("headers", [{}, {"host": "elsewhere.example"}], ids=["", "of another host"])
def test_server_name_stands_in_the_certificate(
    authority: Authority, kind: str, protocol: str, clock: Clock, headers: dict[str, str]
) -> None:
    server = ModelServer()
    with serving(server, protocol, ServerTls(authority.issue("model.example"))) as address:
        with (
            make_client(kind, address, clock, tls=Tls(ca=authority.ca), headers=headers) as client,
            pytest.raises(Unavailable),
        ):
            client.metadata(MODEL)
        assert server.served == []
        tls = Tls(ca=authority.ca, server_name="model.example")
        with make_client(kind, address, tls=tls, headers=headers) as client:
            assert client.metadata(MODEL).version == 7


def test_server_that_wants_certificates_is_shown_one(
    authority: Authority, kind: str, protocol: str, clock: Clock, tmp_path: Path
) -> None:
    own = authority.issue("client@example.org")
    together = tmp_path / "both.pem"
    together.write_bytes(own.cert.read_bytes() + own.key.read_bytes())
    with serving(ModelServer(), protocol, ServerTls(authority.server, authority.ca)) as address:
        for tls in (Tls(authority.ca, own.cert, own.key), Tls(authority.ca, together)):
            with make_client(kind, address, tls=tls) as client:
                assert client.metadata(MODEL).version == 7
        with make_client(kind, address, clock, tls=Tls(authority.ca)) as client, pytest.raises(Unavailable):
            client.metadata(MODEL)


def test_files_that_do_not_do_are_told_when_the_client_is_made(
    authority: Authority, protocol: str, tmp_path: Path
) -> None:
    own, other = authority.issue("client@example.org"), authority.issue("other@example.org")
    text, encrypted = tmp_path / "text", tmp_path / "encrypted"
    text.write_text("nothing")
    encrypted.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAA==\n-----END ENCRYPTED PRIVATE KEY-----\n")
    address = "grpcs://localhost" if protocol == "grpc" else "https://localhost"
    for tls, message in [
        (Tls(ca=tmp_path / "none"), "none: No such file"),
        (Tls(ca=text), "text does not contain PEM certificates of authorities"),
        (Tls(cert=tmp_path / "none", key=own.key), "none: No such file"),
        (Tls(cert=own.cert, key=tmp_path / "none"), "none: No such file"),
        (Tls(key=own.key), "has no certificate"),
        (Tls(cert=own.cert, key=other.key), "does not belong to the certificate"),
        (Tls(cert=own.cert), "expected a certificate and its key"),
        (Tls(cert=own.cert, key=text), "expected a certificate and its key in"),
        (Tls(cert=own.cert, key=encrypted), "is encrypted"),
    ]:
        with pytest.raises(InvalidArgument, match=message):
            Client(address, tls=tls)


def test_certificates_for_an_address_in_the_clear_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="without TLS"):
        Client("localhost:8500", tls=Tls())


def test_headers_go_with_every_request(address: str, server: ModelServer, kind: str, protocol: str) -> None:
    headers = {"Authorization": "Bearer secret", "x-trace-bin": "AAH/", "host": "model.example"}
    with make_client(kind, address, headers=headers) as client:
        client.metadata(MODEL)
        client.status(MODEL)
    for served in server.served:
        assert served.headers["authorization"] == "Bearer secret"
        assert served.headers["x-trace-bin"] == (b"\0\1\xff" if protocol == "grpc" else "AAH/")
        # gRPC's server does not expose the authority.
        assert served.headers.get("host", "model.example") == "model.example"


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"grpc-timeout": "secret"}, "grpc-timeout is reserved"),
        ({"Content-Type": "secret"}, "content-type is reserved"),
        ({":path": "secret"}, "':path' is not a valid header name"),
        ({"": "secret"}, "'' is not a valid header name"),
        ({"x": "secret\r\ny: 1"}, "header x has characters"),
        ({"x": "sécret"}, "header x has characters"),
        ({"x-bin": "?secret"}, "x-bin is not base64"),
        ({"x": "secret", "X": "secret"}, "x is set twice"),
        ({"x": "secret" * 3000}, "18,001 bytes"),
    ],
)
def test_headers_that_cannot_be_sent_are_refused_and_not_told(headers: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as raised:
        Client("localhost:8500", headers=headers)
    assert "secret" not in str(raised.value)
