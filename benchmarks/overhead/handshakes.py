"""Cost of a new connection: clients connect, complete a full TLS handshake, and close, one after the other."""

import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.targets import Protocol, Target

_TIMEOUT_S = 60.0
# HTTP/2 in gRPC's ports, as gRPC clients request it.
_ALPN = {"grpc": "h2", "rest": "http/1.1"}


@dataclass(frozen=True, slots=True)
class HandshakePoint:
    """New connections to one target. CPU is that of the server's process tree, in seconds per 1000 connections."""

    kind: str
    protocol: Protocol
    connections: int
    rate_per_s: float
    cpu_s_per_1000: float


def measure_handshakes(target: Target, duration_s: float, ca: Path) -> HandshakePoint:
    """Connect again and again for `duration_s` seconds, with TLS if the target has it. Sessions are not resumed."""
    connect = _secure_connection(target, ca) if target.has_tls else _plain_connection(target)
    connect()
    before_s, began_s, connections = target.tree.cpu_seconds(), time.monotonic(), 0
    while time.monotonic() < began_s + duration_s:
        connect()
        connections += 1
    elapsed_s, cpu_s = time.monotonic() - began_s, target.tree.cpu_seconds() - before_s
    rate_per_s, cost_s = connections / elapsed_s, 1000 * cpu_s / connections
    return HandshakePoint(target.kind, target.protocol, connections, rate_per_s, cost_s)


def _plain_connection(target: Target) -> Callable[[], None]:
    return lambda: socket.create_connection(("127.0.0.1", target.port), _TIMEOUT_S).close()


def _secure_connection(target: Target, ca: Path) -> Callable[[], None]:
    context = ssl.create_default_context(cafile=ca)
    context.set_alpn_protocols([_ALPN[target.protocol]])

    def connect() -> None:
        with (
            socket.create_connection(("127.0.0.1", target.port), _TIMEOUT_S) as connection,
            context.wrap_socket(connection, server_hostname="127.0.0.1"),
        ):
            pass

    return connect
