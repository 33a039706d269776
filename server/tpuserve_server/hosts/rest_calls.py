"""REST calls as a host sees them: counted, sent away when it is time, and answered 503 when they are cut."""

import asyncio
import json
from typing import TYPE_CHECKING

from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.rpc_failure import SHUTTING_DOWN
from tpuserve_server.hosts.unread_body import BodyReceive, CountedReceive, discard, has_body, is_small

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_CLOSE = (b"connection", b"close")
# In the shape that the REST application gives to errors.
_CUT_BODY = json.dumps({"error": SHUTTING_DOWN.message}).encode()
_CUT_HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(_CUT_BODY)).encode())]


class RestCalls:
    """An ASGI application around another one."""

    def __init__(self, app: "ASGIApp", in_flight: InFlight) -> None:
        self._app = app
        self._in_flight = in_flight
        # Whether every answer asks its client to close the connection.
        self.farewell = False

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """ASGI, for `http` scopes."""
        await self.answer(scope, CountedReceive(receive), send)

    async def answer(self, scope: "Scope", receive: BodyReceive, send: "Send") -> None:
        """As ASGI's call, with a `receive` that says how far it has been read."""
        begun = False

        async def send_farewell(message: "Message") -> None:
            nonlocal begun
            begun = True
            if message["type"] == "http.response.start":
                if self.farewell or not (receive.ended or not has_body(scope) or is_small(scope)):
                    message = {**message, "headers": [*message.get("headers", ()), _CLOSE]}
            elif scope["method"] == "HEAD":
                # Not every server holds it back, and the client would read it as its next answer.
                message = {**message, "body": b""}
            if message["type"] == "http.response.start" or receive.ended or message.get("more_body", False):
                await send(message)
            else:
                await _send_last(message, scope, receive, send)

        self._in_flight.begin()
        try:
            await self._app(scope, receive, send_farewell)
        except asyncio.CancelledError:
            # Half a response cannot be taken back: the server must see it break off.
            if begun or not self._in_flight.is_cut:
                raise
            await _refuse(send_farewell)
        finally:
            self._in_flight.end()


async def _send_last(message: "Message", scope: "Scope", receive: BodyReceive, send: "Send") -> None:
    """The end of an answer to a body that nobody has read: the client gets all of it before the server may close."""
    if has_body(scope):
        await send({**message, "more_body": True})
        await discard(receive)
        message = {**message, "body": b""}
    await send(message)


async def _refuse(send: "Send") -> None:
    await send({"type": "http.response.start", "status": 503, "headers": _CUT_HEADERS})
    await send({"type": "http.response.body", "body": _CUT_BODY})
