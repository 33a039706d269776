"""Wraps the REST application for a host: counts calls, asks clients to close, answers cancelled calls with 503."""

import asyncio
import json
from typing import TYPE_CHECKING, Final

from tpuserve_server.core.deadline import Clock, Deadline, SystemClock
from tpuserve_server.core.overload_gate import OverloadGate
from tpuserve_server.frontends.http.headers import find_timeout_s
from tpuserve_server.frontends.http.response import error_body
from tpuserve_server.hosts.grpc.failure import SHUTTING_DOWN
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.inference_paths import INFERENCE_ENDS, OVERLOADED

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send


_BODY: Final = error_body(OVERLOADED)
_HEADERS: Final = (
    (b"content-type", b"application/json"),
    (b"content-length", b"%d" % len(_BODY)),
    # Whole seconds (RFC 9110, 10.2.3).
    (b"retry-after", b"1"),
)
_START: "Final[Message]" = {"type": "http.response.start", "status": 429, "headers": list(_HEADERS)}
_END: "Final[Message]" = {"type": "http.response.body", "body": _BODY}


def is_late(gate: OverloadGate, scope: "Scope", clock: Clock) -> bool:
    """Return whether a request would miss the deadline of its timeout header. See `OverloadGate.lateness_s`."""
    if scope["method"] != "POST" or not scope["path"].endswith(INFERENCE_ENDS):
        return False
    return gate.lateness_s(Deadline.after(find_timeout_s(scope), clock)) > 0.0


async def refuse(send: "Send") -> None:
    """Answer 429 with a retry hint."""
    await send(_START)
    await send(_END)


_CLOSE = (b"connection", b"close")
# The error form of the REST application.
_CUT_BODY = json.dumps({"error": SHUTTING_DOWN.message}).encode()
_CUT_HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(_CUT_BODY)).encode())]


class RestCalls:
    """ASGI application around another one. One event loop's thread owns it."""

    def __init__(self, app: "ASGIApp", in_flight: InFlight, gate: OverloadGate) -> None:
        """Count the calls of `app` in `in_flight`, and refuse those that `gate` predicts to be late."""
        self._app = app
        self._gate = gate
        self._clock = SystemClock()
        self._in_flight = in_flight
        # Whether every response asks its client to close the connection.
        self.farewell = False
        # Responses that have asked for it.
        self.farewells = 0

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer an `http` scope."""
        if self.farewell and scope["http_version"] == "1.1":
            send = self._with_farewell(send)
        if self._gate.may_refuse and is_late(self._gate, scope, self._clock):
            return await refuse(send)
        begun = False

        # A plain function returns the server's own awaitable.
        def send_on(message: "Message") -> "Awaitable[None]":
            nonlocal begun
            begun = True
            return send(message)

        task = self._in_flight.begin()
        try:
            await self._app(scope, receive, send_on)
        except asyncio.CancelledError:
            # A response that has begun cannot be replaced: raise, so that the server closes the connection.
            if begun or not self._in_flight.is_cut:
                raise
            await send({"type": "http.response.start", "status": 503, "headers": _CUT_HEADERS})
            await send({"type": "http.response.body", "body": _CUT_BODY})
        finally:
            self._in_flight.end(task)
        return None

    def _with_farewell(self, send: "Send") -> "Send":
        def send_on(message: "Message") -> "Awaitable[None]":
            if message["type"] == "http.response.start":
                self.farewells += 1
                message = {**message, "headers": [*message.get("headers", ()), _CLOSE]}
            return send(message)

        return send_on
