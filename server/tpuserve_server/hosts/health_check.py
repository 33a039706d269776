"""Health check: asks the server on this machine whether it is ready, whatever its addresses and its TLS.

Containers run it every few seconds, so it imports little, and ssl only for TLS.
"""

import json
import socket
import sys
from typing import Final

from tpuserve_server.hosts.announcement import Announcement

# Shorter than the timeout of the image's HEALTHCHECK.
_TIMEOUT_S: Final = 4.0
READY, LIVE = "/readyz", "/healthz"


class _Unhealthy(Exception):
    """The reason why the server is not ready. The exit code is `code`."""

    def __init__(self, why: str, code: int = 1) -> None:
        super().__init__(why)
        self.code = code


def check_health(path: str = READY, pid: int | None = None) -> int:
    """Ask the server, print a line, and return the exit code. Blocks for at most a few seconds."""
    try:
        print(_ask(_find(pid), path))  # noqa: T201 - the output of a program
    except _Unhealthy as error:
        print(error, file=sys.stderr)  # noqa: T201 - the output of a program
        return error.code
    return 0


def _find(pid: int | None) -> Announcement:
    servers = [server for server in Announcement.all() if pid in (None, server.pid)]
    if not servers:
        which = "No server of this user" if pid is None else f"No server with the process id {pid}"
        raise _Unhealthy(f"{which} has opened its ports.")
    if len(servers) > 1:
        pids = ", ".join(str(each) for each in sorted(server.pid for server in servers))
        raise _Unhealthy(f"Several servers run, with the process ids {pids}. Set --pid.", 2)
    return servers[0]


def _ask(server: Announcement, path: str) -> str:
    """Return the line for a healthy server. Raises _Unhealthy."""
    address, uses_tls = server.reachable_address
    shown = f"{'https://' if uses_tls else ''}{address}{path}"
    try:
        status, body = _get(address, path, uses_tls=uses_tls)
    except (OSError, ValueError) as error:
        raise _Unhealthy(f"{shown}: no response: {error}") from None
    if status != 200:
        raise _Unhealthy(f"{shown}: {status}: {_reason(body)}")
    return f"{shown}: 200"


def _get(address: str, path: str, *, uses_tls: bool) -> tuple[int, bytes]:
    """Return status and body. Raises OSError, or ValueError for a response that is not HTTP.

    http.client imports ssl and email, which would take a third of the time of a check. The address is this server's
    own, so its certificate need not name it.
    """
    connection = _connect(address)
    if uses_tls:
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = context.wrap_socket(connection)
    with connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        with connection.makefile("rb") as response:
            head, _, body = response.read(1 << 20).partition(b"\r\n\r\n")
    _, status, *_ = head.split(b" ", 2)
    return int(status), body


def _connect(address: str) -> socket.socket:
    if address.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_TIMEOUT_S)
        connection.connect(address.removeprefix("unix:"))
        return connection
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT_S)


def _reason(body: bytes) -> str:
    try:
        return str(json.loads(body)["reason"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")
