"""Envoy's admin interface over its UNIX socket, and the drain through it."""

import asyncio
import http.client
import json
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tpuserve_server.hosts.addresses import join
from tpuserve_server.hosts.application import HostOptions, Listening
from tpuserve_server.hosts.envoy.config import FAREWELL_S, STAT_PREFIX, addresses

_TIMEOUT_S = 5.0
_ASK_AGAIN_S = 0.02

_REQUESTS = f"http.{STAT_PREFIX}.downstream_rq_active"
_CONNECTIONS = f"http.{STAT_PREFIX}.downstream_cx_active"
# Answers that are complete for Envoy, but that a slow client has not taken yet.
_UNSENT_BYTES = f"http.{STAT_PREFIX}.downstream_cx_tx_bytes_buffered"


class NoAnswerYet(OSError):
    """Envoy is too busy to answer in time. No TimeoutError: that would pass for the end of whatever a caller waits."""


class EnvoyAdmin:
    """Blocking calls that take milliseconds. Raise OSError or http.client.HTTPException when Envoy does not answer.

    Of these NoAnswerYet is the one after which asking again may help.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def is_live(self) -> bool:
        """Whether Envoy accepts connections. False, too, while the admin interface is not there yet."""
        try:
            status, _ = self._ask("GET", "/ready")
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return status == 200

    def listening(self, options: HostOptions) -> Listening:
        """The addresses it is bound to, with the ports that it found for 0."""
        _, body = self._ask("GET", "/listeners?format=json")
        [listener] = json.loads(body)["listener_statuses"]
        bound = [listener["local_address"], *listener.get("additional_local_addresses", ())]
        return Listening(
            **dict(zip(addresses(options), map(_written, bound), strict=True)), tls=options.tls is not None
        )

    def say_farewell(self) -> None:
        """Refuse new connections, and with every answer ask its client to close the one it has.

        In this order: told to go, clients come back with new connections, and closing a port resets those that wait.
        """
        self._ask("POST", "/drain_listeners")
        self._ask("POST", "/healthcheck/fail")

    def is_quiet(self) -> bool:
        """Whether no request is in flight and every answer has left."""
        gauges = self._gauges()
        return gauges[_REQUESTS] == 0 and gauges[_UNSENT_BYTES] == 0

    def is_deserted(self) -> bool:
        """Whether no client is connected."""
        return self._gauges()[_CONNECTIONS] == 0

    def _gauges(self) -> dict[str, int]:
        _, body = self._ask("GET", f"/stats?format=json&type=Gauges&filter=^http.{STAT_PREFIX}.downstream_")
        return {stat["name"]: stat["value"] for stat in json.loads(body)["stats"] if "name" in stat}

    def _ask(self, method: str, path: str) -> tuple[int, bytes]:
        connection = _UnixConnection(self.path)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, response.read()
        except TimeoutError as error:
            raise NoAnswerYet(f"No answer to {path} within {_TIMEOUT_S:g} s") from error
        finally:
            connection.close()


async def drain(admin: EnvoyAdmin, finish: Callable[[], Awaitable[None]]) -> None:
    """Send clients away, then wait: for `finish`, for Envoy's last byte, for who might be sending just now."""

    def farewell_is_said() -> bool:
        admin.say_farewell()
        return True

    await until(farewell_is_said)
    gone_at_s = time.monotonic() + FAREWELL_S
    await finish()
    await until(admin.is_quiet)
    # A client that is still connected may not have heard the farewell yet.
    await until(lambda: time.monotonic() >= gone_at_s or admin.is_deserted())
    await until(admin.is_quiet)


async def until(answer: Callable[[], bool]) -> None:
    """Ask in another thread until the answer is yes: the admin interface has nothing that one could wait on.

    No answer yet is no yes. Whoever cannot wait without end brings a timeout.
    """
    while not await asyncio.to_thread(_is_yes, answer):  # noqa: ASYNC110
        await asyncio.sleep(_ASK_AGAIN_S)


def _is_yes(answer: Callable[[], bool]) -> bool:
    try:
        return answer()
    except NoAnswerYet:
        return False


def _written(address: dict[str, Any]) -> str:
    if "pipe" in address:
        return f"unix:{address['pipe']['path']}"
    return join(address["socket_address"]["address"], address["socket_address"]["port_value"])


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
