"""Envoy's admin interface over a UNIX socket, and the drain that uses it."""

import asyncio
import http.client
import json
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from tpuserve_server.hosts.addresses import join
from tpuserve_server.hosts.application import HostOptions, Listening
from tpuserve_server.hosts.envoy.config import DRAIN_GRACE_S, STAT_PREFIX, addresses
from tpuserve_server.hosts.envoy.shedding_filters import REFUSED_PERCENT

_TIMEOUT_S = 5.0
_ASK_AGAIN_S = 0.02

_REQUESTS = f"http.{STAT_PREFIX}.downstream_rq_active"
_REFUSED = f"http.{STAT_PREFIX}.fault.aborts_injected"
_CONNECTIONS = f"http.{STAT_PREFIX}.downstream_cx_active"
# Bytes of responses that Envoy has completed, but that a slow client has not read yet.
_UNSENT_BYTES = f"http.{STAT_PREFIX}.downstream_cx_tx_bytes_buffered"


class AdminError(Exception):
    """Envoy refused an order."""


class NoResponseYet(OSError):
    """Envoy is too busy to answer in time. Not a TimeoutError, because callers would take it for their own timeout."""


class Unfinished(NamedTuple):
    """Requests without a complete response, and the bytes of responses that clients have not read."""

    requests: int
    unread_bytes: int


class EnvoyAdmin:
    """Client of the admin interface. Its methods block for milliseconds.

    They raise OSError or http.client.HTTPException if Envoy does not answer. A retry may help only after NoResponseYet.
    """

    def __init__(self, path: Path, timeout_s: float | None = None) -> None:
        """Wait for `timeout_s` for a response, or for the default time."""
        self.path = path
        self._timeout_s = timeout_s

    def is_live(self) -> bool:
        """Return whether Envoy accepts connections. False also means that the admin interface does not exist yet."""
        try:
            status, _ = self._ask("GET", "/ready")
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return status == 200

    def listening(self, options: HostOptions) -> Listening:
        """Return the addresses that Envoy listens on, with the chosen ports for port 0."""
        _, body = self._ask("GET", "/listeners?format=json")
        [listener] = json.loads(body)["listener_statuses"]
        bound = [listener["local_address"], *listener.get("additional_local_addresses", ())]
        return Listening(
            **dict(zip(addresses(options), map(_written, bound), strict=True)), tls=options.tls is not None
        )

    def secret_updates(self, name: str) -> int:
        """Return how often Envoy has accepted a secret of this name from its file."""
        _, body = self._ask("GET", f"/stats?format=json&type=Counters&filter={name}.update_success$")
        [count] = [stat["value"] for stat in json.loads(body)["stats"] if f"sds.{name}." in stat.get("name", "")]
        return int(count)

    def refuse(self, percent: int) -> None:
        """Refuse this share of the inference requests with a deadline, see shedding_filters.py.

        Raises AdminError if Envoy does not accept it.
        """
        status, body = self._ask("POST", f"/runtime_modify?{REFUSED_PERCENT}={percent}")
        if status != 200:
            raise AdminError(f"status {status}: {body.decode(errors='replace')}")

    def refused(self) -> int:
        """Return the number of requests that Envoy has refused for this share."""
        _, body = self._ask("GET", f"/stats?format=json&filter=^{_REFUSED}$")
        return sum(stat["value"] for stat in json.loads(body)["stats"] if "value" in stat)

    def statistics(self, names: str) -> str:
        """Return the statistics whose names match a regular expression, in Prometheus' text format.

        Raises AdminError if Envoy does not accept it.
        """
        status, body = self._ask("GET", f"/stats/prometheus?filter={quote(names)}")
        if status != 200:
            raise AdminError(f"status {status}: {body.decode(errors='replace')}")
        return body.decode()

    def begin_drain(self) -> None:
        """Refuse new connections, then ask clients with every response to close theirs.

        The order matters. A client that closes its connection reconnects at once, and closing the port would reset
        connections in its backlog.
        """
        self._ask("POST", "/drain_listeners")
        self._ask("POST", "/healthcheck/fail")

    def unfinished(self) -> Unfinished:
        """Return the requests that are not answered yet."""
        gauges = self._gauges()
        return Unfinished(gauges[_REQUESTS], gauges[_UNSENT_BYTES])

    def is_quiet(self) -> bool:
        """Return whether no request is in flight and every response has been sent."""
        return not any(self.unfinished())

    def has_no_client(self) -> bool:
        """Return whether no client is connected."""
        return self._gauges()[_CONNECTIONS] == 0

    def _gauges(self) -> dict[str, int]:
        _, body = self._ask("GET", f"/stats?format=json&type=Gauges&filter=^http.{STAT_PREFIX}.downstream_")
        return {stat["name"]: stat["value"] for stat in json.loads(body)["stats"] if "name" in stat}

    def _ask(self, method: str, path: str) -> tuple[int, bytes]:
        timeout_s = _TIMEOUT_S if self._timeout_s is None else self._timeout_s
        connection = _UnixConnection(self.path, timeout_s)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, response.read()
        except TimeoutError as error:
            raise NoResponseYet(f"No response to {path} within {timeout_s:g} s") from error
        finally:
            connection.close()


async def drain(admin: EnvoyAdmin, finish: Callable[[], Awaitable[None]], *, farewell_s: float = DRAIN_GRACE_S) -> None:
    """Ask clients to disconnect, then wait for `finish`, for Envoy's last byte and for requests on their way.

    A client learns of the drain from its next response. Clients that stay connected have `farewell_s` for it.
    """

    def drain_has_begun() -> bool:
        admin.begin_drain()
        return True

    await until(drain_has_begun)
    grace_ends_s = time.monotonic() + farewell_s
    await finish()
    await until(admin.is_quiet)
    # A client that is still connected may not have received the farewell yet.
    await until(lambda: time.monotonic() >= grace_ends_s or admin.has_no_client())
    await until(admin.is_quiet)


async def until(condition: Callable[[], bool]) -> None:
    """Poll `condition` in another thread until it returns True: the admin interface has no notifications.

    NoResponseYet counts as False. Use a timeout to limit the wait.
    """
    while not await asyncio.to_thread(_holds, condition):  # noqa: ASYNC110
        await asyncio.sleep(_ASK_AGAIN_S)


def _holds(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except NoResponseYet:
        return False


def _written(address: dict[str, Any]) -> str:
    if "pipe" in address:
        return f"unix:{address['pipe']['path']}"
    return join(address["socket_address"]["address"], address["socket_address"]["port_value"])


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
