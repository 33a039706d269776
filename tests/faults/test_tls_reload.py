"""Tests for new certificates after SIGHUP, and silent TLS handshakes (cases 39 and 40)."""

import http.client
import json
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
import trustme

from tests.faults.fault_row import FaultRow
from tests.faults.raw_http1 import received
from tests.server.hosts.grpc_calls import unary
from tests.server.hosts.host_process import PATIENCE_S, HostProcess, running

OLD, NEW = trustme.CA(), trustme.CA()
# Longer than a busy machine stops a good client.
HANDSHAKE_S = 3


def texts(server: trustme.CA, clients: trustme.CA) -> dict[str, str]:
    certificate = server.issue_cert("127.0.0.1", "localhost")
    return {
        "private_key": certificate.private_key_pem.bytes().decode(),
        "certificate_chain": "".join(pem.bytes().decode() for pem in certificate.cert_chain_pems),
        "client_ca": clients.cert_pem.bytes().decode(),
    }


class ReloadingHost:
    """A host with mutual TLS, whose certificates come from a file. Each authority issues for servers and clients."""

    def __init__(self, host: HostProcess, file: Path) -> None:
        self.process = host
        self.file = file

    def replace(self, content: str) -> None:
        """Replace the file in one step."""
        new = self.file.with_suffix(".new")
        new.write_text(content)
        new.replace(self.file)

    def reload(self, content: str) -> None:
        self.replace(content)
        self.process.process.send_signal(signal.SIGHUP)

    def channel(self, authority: trustme.CA, *options: tuple[str, int]) -> grpc.Channel:
        """Connect as a client of an authority, which trusts only its servers."""
        own = authority.issue_cert("client@example.org")
        key, chain = own.private_key_pem.bytes(), own.cert_chain_pems[0].bytes()
        credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes(), key, chain)
        return grpc.secure_channel(self.process.grpc, credentials, options)

    def rest(self, authority: trustme.CA, name: str | None = None) -> ssl.SSLSocket:
        """Connect to REST as `channel` does. Without a name the client sends no server name."""
        return context_of(authority).wrap_socket(self.connect("rest"), server_hostname=name or "127.0.0.1")

    def kept_rest(self, authority: trustme.CA) -> http.client.HTTPSConnection:
        """Return a client of REST that keeps its connection until the server asks it to connect again."""
        address = self.process.listening["rest"]
        return http.client.HTTPSConnection(address, timeout=PATIENCE_S, context=context_of(authority))

    def connect(self, protocol: str) -> socket.socket:
        """Connect without TLS."""
        address, port = self.process.listening[protocol].split(":")
        return socket.create_connection((address, int(port)), timeout=PATIENCE_S)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        waiting = threading.Event()
        while not condition():
            assert self.process.process.poll() is None
            waiting.wait(0.02)

    def serves(self, authority: trustme.CA) -> bool:
        """Return whether a new connection gets a certificate of this authority, and its client is accepted."""
        try:
            with self.rest(authority) as connection:
                return post(connection) == b"body"
        except (ssl.SSLError, ConnectionError, http.client.HTTPException):
            return False


def context_of(authority: trustme.CA) -> ssl.SSLContext:
    """Return the settings of a client of an authority, which trusts only its servers."""
    context = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
    authority.issue_cert("client@example.org").configure_cert(context)
    return context


def request(connection: http.client.HTTPSConnection) -> bytes:
    connection.request("POST", "/", b"body")
    return connection.getresponse().read()


def post(connection: ssl.SSLSocket) -> bytes:
    connection.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nbody")
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response.read()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[ReloadingHost]:
    file = tmp_path / "tls.json"
    environment = {**os.environ, "ECHO_TLS": str(file)}
    with running(environment, tls=texts(OLD, OLD), header_timeout_s=HANDSHAKE_S) as host:
        yield ReloadingHost(host, file)


def test_sighup_replaces_the_certificates_of_all_clients(
    host: ReloadingHost, record: Callable[[FaultRow], None]
) -> None:
    with host.channel(OLD) as old, host.rest(OLD) as old_rest:
        assert (unary(old, "Unary")(b"before"), post(old_rest)) == (b"before", b"body")
        with host.connect("grpc") as silent_grpc, host.connect("rest") as silent_rest:
            assert received(silent_grpc) == received(silent_rest) == b""
        record(FaultRow(40, "silent TLS handshake", "gRPC, REST (echo)", "closed", "closed"))

        # Certificates that cannot be used change nothing.
        for content, why in (
            (json.dumps({**texts(NEW, NEW), "private_key": texts(NEW, NEW)["private_key"]}), "does not belong to"),
            (json.dumps({**texts(NEW, NEW), "client_ca": None}), "A reload can replace custom_ca, but not add or"),
        ):
            host.reload(content)
            host.wait_until(lambda why=why: any(why in line for line in host.process.errors))  # type: ignore[misc]  # mypy does not infer lambdas with defaults
            assert host.serves(OLD)
            assert not host.serves(NEW)

        host.reload(json.dumps(texts(NEW, NEW)))
        host.wait_until(lambda: host.serves(NEW))
        # Until it ends, the server before may accept new connections, too.
        host.wait_until(lambda: not any(host.serves(OLD) for _ in range(10)))
        with host.rest(NEW, "localhost") as named, host.channel(NEW) as new:
            assert (post(named), unary(new, "Unary")(b"after")) == (b"body", b"after")
        with host.channel(OLD) as stranger, pytest.raises(grpc.RpcError):
            unary(stranger, "Unary")(b"stranger", timeout=PATIENCE_S)
        # A client of the old authority must connect again, and is refused.
        with pytest.raises(grpc.RpcError):
            unary(old, "Unary")(b"still", timeout=PATIENCE_S)
        assert received(old_rest) == b""

    # Another process gets the new certificates.
    os.kill(host.process.serving_pid(), signal.SIGKILL)
    host.process.listening = host.process.wait_for("announce")
    assert host.serves(NEW)
    for fault, expected in (
        ("SIGHUP with a key of another certificate", "old certificates"),
        ("SIGHUP with new certificates", "new certificates; clients connect again"),
    ):
        record(FaultRow(39, fault, "gRPC, REST (echo)", expected, expected))
