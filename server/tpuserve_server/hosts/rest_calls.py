"""Wraps the REST application for a host: counts calls, asks clients to close, answers cancelled calls with 503."""

import asyncio
import json
from typing import TYPE_CHECKING

from tpuserve_server.core.deadline import SystemClock
from tpuserve_server.core.overload_gate import OverloadGate
from tpuserve_server.hosts import rest_refusal
from tpuserve_server.hosts.grpc.failure import SHUTTING_DOWN
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.unread_body import BodyReceive, discard, has_body, is_small

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from starlette.types import ASGIApp, Message, Scope, Send

_CLOSE = (b"connection", b"close")
# The error form of the REST application.
_CUT_BODY = json.dumps({"error": SHUTTING_DOWN.message}).encode()
_CUT_HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(_CUT_BODY)).encode())]


class RestCalls:
    """ASGI application around another one. Its `receive` must report how far the body was read."""

    def __init__(self, app: "ASGIApp", in_flight: InFlight, gate: OverloadGate) -> None:
        self._app = app
        self._gate = gate
        self._clock = SystemClock()
        self._in_flight = in_flight
        # Whether every response asks its client to close the connection.
        self.farewell = False
        # Responses that have asked for it.
        self.farewells = 0

    async def __call__(self, scope: "Scope", receive: BodyReceive, send: "Send") -> None:
        """Answer an `http` scope."""
        is_late = self._gate.may_refuse and is_small(scope) and rest_refusal.is_late(self._gate, scope, self._clock)
        if is_late:
            # A small body has usually arrived. Reading it takes less time than `_send_body` does for an unread one.
            await receive()
            if receive.ended and not self.farewell:
                return await rest_refusal.refuse(send)
        begun = False
        has_content = scope["method"] != "HEAD"

        # A plain function returns the server's own coroutine if there is nothing to add.
        def send_on(message: "Message") -> "Awaitable[None]":
            nonlocal begun
            begun = True
            if receive.ended and has_content and not self.farewell:
                return send(message)
            if message["type"] == "http.response.start":
                return send(self._with_farewell(message, scope, receive))
            # Some servers send a body in response to HEAD, which the client would read as its next response.
            return _send_body(message if has_content else {**message, "body": b""}, scope, receive, send)

        if is_late:
            return await rest_refusal.refuse(send_on)
        task = self._in_flight.begin()
        try:
            await self._app(scope, receive, send_on)
        except asyncio.CancelledError:
            # A response that has begun cannot be replaced: raise, so that the server closes the connection.
            if begun or not self._in_flight.is_cut:
                raise
            await _refuse(send_on)
        finally:
            self._in_flight.end(task)
        return None

    def _with_farewell(self, start: "Message", scope: "Scope", receive: BodyReceive) -> "Message":
        """Add `connection: close` to `start` during the farewell, or if the body may not be read to its end."""
        if self.farewell or not (receive.ended or not has_body(scope) or is_small(scope)):
            self.farewells += 1
            return {**start, "headers": [*start.get("headers", ()), _CLOSE]}
        return start


async def _send_body(message: "Message", scope: "Scope", receive: BodyReceive, send: "Send") -> None:
    """Send a body message. Discard an unread request body before the response ends.

    The client then gets the response before the server may close the connection.
    """
    if not receive.ended and not message.get("more_body", False) and has_body(scope):
        await send({**message, "more_body": True})
        await discard(receive)
        message = {**message, "body": b""}
    await send(message)


async def _refuse(send: "Send") -> None:
    await send({"type": "http.response.start", "status": 503, "headers": _CUT_HEADERS})
    await send({"type": "http.response.body", "body": _CUT_BODY})
