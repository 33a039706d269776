"""Tests that no TLS session outlives the authority of its client, on both ports."""

import json
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.test_tls_reload import NEW, OLD, ReloadingHost, texts
from tests.server.hosts.host_process import PATIENCE_S, running


@pytest.fixture
def host(tmp_path: Path) -> Iterator[ReloadingHost]:
    file = tmp_path / "tls.json"
    # Both authorities issue for clients, and the server's certificate stays.
    with running({**os.environ, "ECHO_TLS": str(file)}, tls=texts(OLD, OLD)) as host:
        yield ReloadingHost(host, file)


def connect(
    host: ReloadingHost, protocol: str, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> ssl.SSLSocket:
    name, port = host.process.listening[protocol].split(":")
    connection = socket.create_connection((name, int(port)), timeout=PATIENCE_S)
    return context.wrap_socket(connection, server_hostname="127.0.0.1", session=session)


def is_served(connection: ssl.SSLSocket) -> bool:
    """Return whether the server answers a request. It closes connections of clients that it refuses."""
    try:
        with connection:
            if connection.selected_alpn_protocol() == "h2":
                # The preface and empty settings, which the server answers with its own.
                connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04\x00" + bytes(4))
            else:
                connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            return bool(connection.recv(100))
    except (ssl.SSLError, ConnectionError):
        return False


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda version: version.name)
@pytest.mark.parametrize("protocol", ["grpc", "rest"])
def test_session_of_a_client_ends_with_its_authority(
    host: ReloadingHost, protocol: str, version: ssl.TLSVersion
) -> None:
    context = ssl.create_default_context(cadata=OLD.cert_pem.bytes().decode())
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"] if protocol == "grpc" else ["http/1.1"])
    OLD.issue_cert("client@example.org").configure_cert(context)
    with connect(host, protocol, context) as first:
        # The server's tickets of TLS 1.3 come with its first bytes.
        first.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04\x00" + bytes(4))
        first.recv(100)
        session = first.session

    host.reload(json.dumps(texts(OLD, NEW)))
    host.process.wait_for("certificates")
    try:
        resumed = connect(host, protocol, context, session)
    except (ssl.SSLError, ConnectionError):
        return
    assert not is_served(resumed)
