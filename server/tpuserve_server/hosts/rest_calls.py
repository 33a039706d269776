"""REST calls as a host sees them: counted, sent away when it is time, and answered 503 when they are cut."""

import asyncio
import json
from typing import TYPE_CHECKING

from tpuserve_server.hosts.grpc.failure import SHUTTING_DOWN
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.unread_body import BodyReceive, discard, has_body, is_small

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from starlette.types import ASGIApp, Message, Scope, Send

_CLOSE = (b"connection", b"close")
# In the shape that the REST application gives to errors.
_CUT_BODY = json.dumps({"error": SHUTTING_DOWN.message}).encode()
_CUT_HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(_CUT_BODY)).encode())]


class RestCalls:
    """An ASGI application around another one; servers must tell it how far a body has been read."""

    def __init__(self, app: "ASGIApp", in_flight: InFlight) -> None:
        self._app = app
        self._in_flight = in_flight
        # Whether every answer asks its client to close the connection.
        self.farewell = False

    async def __call__(self, scope: "Scope", receive: BodyReceive, send: "Send") -> None:
        """ASGI, for `http` scopes, with a `receive` that says how far it has been read."""
        begun = False
        has_content = scope["method"] != "HEAD"

        # A function, and the server's own coroutine where there is nothing to add.
        def send_on(message: "Message") -> "Awaitable[None]":
            nonlocal begun
            begun = True
            if receive.ended and has_content and not self.farewell:
                return send(message)
            if message["type"] == "http.response.start":
                return send(self._with_farewell(message, scope, receive))
            # Not every server holds back what answers a HEAD, and the client would read it as its next answer.
            return _send_body(message if has_content else {**message, "body": b""}, scope, receive, send)

        self._in_flight.begin()
        try:
            await self._app(scope, receive, send_on)
        except asyncio.CancelledError:
            # Half a response cannot be taken back: the server must see it break off.
            if begun or not self._in_flight.is_cut:
                raise
            await _refuse(send_on)
        finally:
            self._in_flight.end()

    def _with_farewell(self, start: "Message", scope: "Scope", receive: BodyReceive) -> "Message":
        """`start`, asking the client to close if it is time to, or if the body may not be read to its end."""
        if self.farewell or not (receive.ended or not has_body(scope) or is_small(scope)):
            return {**start, "headers": [*start.get("headers", ()), _CLOSE]}
        return start


async def _send_body(message: "Message", scope: "Scope", receive: BodyReceive, send: "Send") -> None:
    """An answer to a body that nobody has read ends after that: the client gets it before the server may close."""
    if not receive.ended and not message.get("more_body", False) and has_body(scope):
        await send({**message, "more_body": True})
        await discard(receive)
        message = {**message, "body": b""}
    await send(message)


async def _refuse(send: "Send") -> None:
    await send({"type": "http.response.start", "status": 503, "headers": _CUT_HEADERS})
    await send({"type": "http.response.body", "body": _CUT_BODY})
