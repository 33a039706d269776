"""RestCalls: the REST application as a host runs it. Most inference requests need no task."""

import asyncio
import json
from collections.abc import Awaitable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from tpuserve_server.core.batching.task import Outcome
from tpuserve_server.core.serving.service import OverloadGate
from tpuserve_server.core.system.at_once import take_at_once
from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.hosts.departed_clients import DepartedClients
from tpuserve_server.hosts.grpc_status import SHUTTING_DOWN
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.quick_calls import QuickCall
from tpuserve_server.hosts.refusals import OVERLOADED, is_late
from tpuserve_server.protocols.exchanges import Exchanges
from tpuserve_server.protocols.status import ClientGone

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_CLOSE = (b"connection", b"close")
# The error form of the REST application.
_CUT_BODY = json.dumps({"error": SHUTTING_DOWN.message}).encode()
_CUT_HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(_CUT_BODY)).encode())]
_CUT: "tuple[Message, Message]" = (
    {"type": "http.response.start", "status": 503, "headers": _CUT_HEADERS},
    {"type": "http.response.body", "body": _CUT_BODY},
)


class RestCalls:
    """ASGI application around another one. One event loop's thread owns it."""

    def __init__(
        self,
        app: "ASGIApp",
        in_flight: InFlight,
        gate: OverloadGate,
        exchanges: Exchanges | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Count the calls of `app` in `in_flight`, and refuse those that `gate` predicts to be late.

        With the running `loop`, which `allow_quick_calls` has prepared, requests that `exchanges` take need no task.
        """
        self._app = app
        self._gate = gate
        self._clock = SystemClock()
        self._in_flight = in_flight
        self._exchanges = exchanges
        self._loop = loop
        self._departed = DepartedClients()
        # Whether every response asks its client to close the connection.
        self.farewell = False
        # Responses that have asked for it.
        self.farewells = 0

    def begin(self, scope: "Scope", receive: "Receive", send: "Send") -> Awaitable[None]:
        """Answer an `http` scope of the host's server."""
        if scope["http_version"] != "1.1":
            return self(scope, receive, send)
        if (
            self._exchanges is not None
            and self._loop is not None
            and scope["method"] == "POST"
            and not self.farewell
            and not self._gate.may_refuse
        ):
            first, coming = take_at_once(receive())
            if first is not None:
                call = QuickExchange(send, self._in_flight, self._loop)
                if call.begin(self._exchanges, scope, first, partial(self._departed.departure, scope)):
                    return call
            receive = _again(first, coming, receive)
        return self(scope, self._departed.receive(scope, receive), send)

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer an `http` scope in a task."""
        if self.farewell and scope["http_version"] == "1.1":
            send = self._with_farewell(send)
        if self._gate.may_refuse and is_late(self._gate, scope, self._clock):
            return await OVERLOADED.send(send, is_grpc=False)
        begun = False

        # A plain function returns the server's own awaitable.
        def send_on(message: "Message") -> Awaitable[None]:
            nonlocal begun
            begun = True
            return send(message)

        task = self._in_flight.begin()
        is_cut = False
        try:
            try:
                await self._app(scope, receive, send_on)
            except asyncio.CancelledError:
                # A response that has begun cannot be replaced: raise, so that the server closes the connection.
                if begun or not self._in_flight.is_cut:
                    raise
                is_cut = True
            if is_cut:
                await _send_both(send, _CUT)
        finally:
            self._in_flight.end(task)
        return None

    def _with_farewell(self, send: "Send") -> "Send":
        def send_on(message: "Message") -> Awaitable[None]:
            if message["type"] == "http.response.start":
                self.farewells += 1
                message = {**message, "headers": [*message.get("headers", ()), _CLOSE]}
            return send(message)

        return send_on


class QuickExchange(QuickCall):
    """A request of HTTP/1.1. The HTTP server does not cancel it: its exchange notices that its client leaves."""

    __slots__ = ("_call", "_interruption", "_send")

    def __init__(self, send: "Send", in_flight: InFlight, loop: asyncio.AbstractEventLoop) -> None:
        """Answer with `send` on the running `loop`."""
        super().__init__(in_flight, loop)
        self._send = send

    def begin(self, exchanges: Exchanges, scope: "Scope", first: "Message", departure: "Receive") -> bool:
        """Queue the request, or return False before any effect. It ends in a later turn of the loop.

        `first` is its first message, and `departure` waits until its client leaves.
        """
        call = exchanges.begin(scope, first, departure, self)
        if call is None:
            return False
        self._call = call
        self._interruption = call.watch_client(self).__enter__()
        self._begin(is_ready=call.is_ready)
        return True

    def _respond(self, outcome: Outcome) -> Coroutine[Any, Any, None]:
        self._interruption.end()
        reply = self._call.end(outcome)
        return _send_both(self._send, reply) if isinstance(reply, tuple) else self._answer_slowly(reply)

    def _give_up(self) -> None:
        reason = self._interruption.reason
        self._interruption.end()
        self._call.give_up(reason or asyncio.CancelledError())
        if self._in_flight.is_cut:
            self._finish(_send_both(self._send, _CUT))
        else:
            if not isinstance(reason, ClientGone):
                self._error = asyncio.CancelledError()
            self._end()

    async def _answer_slowly(self, coming: "Coroutine[Any, Any, tuple[Message, Message]]") -> None:
        try:
            messages = await coming
        except asyncio.CancelledError:
            if not self._in_flight.is_cut:
                raise
            messages = _CUT
        await _send_both(self._send, messages)


def _again(first: "Message | None", coming: "Awaitable[Message] | None", receive: "Receive") -> "Receive":
    """Return a `receive` whose first message is `first`, or the one of `coming`."""

    async def receive_again() -> "Message":
        nonlocal first, coming
        if coming is not None:
            awaited, coming = coming, None
            return await awaited
        if first is not None:
            message, first = first, None
            return message
        return await receive()

    return receive_again


async def _send_both(send: "Send", messages: "tuple[Message, Message]") -> None:
    start, body = messages
    await send(start)
    await send(body)
