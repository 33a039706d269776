"""Tunnel: the front-end's side of the ASGI calls that the engine answers."""

import asyncio
import enum
import itertools
import pickle
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from tpuserve_server.core.deadline import Clock, SystemClock
from tpuserve_server.core.errors import Code
from tpuserve_server.frontends.http.headers import LAG_KEY
from tpuserve_server.hosts.disconnects import DISCONNECT
from tpuserve_server.hosts.grpc.failure import SHUTTING_DOWN, RpcFailure
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.identity.certificate import CERTIFICATE_KEY
from tpuserve_server.link.connection import Connection, Handler
from tpuserve_server.link.messages import ENGINE_ENDED
from tpuserve_server.tunnel.messages import (
    BODY_HEAD,
    CARRIED_KEYS,
    DISCONNECTED,
    FAILED,
    MORE,
    NUMBER,
    PIECE_BYTES,
    ROOM_HEAD,
    WINDOW_BYTES,
    Opening,
    TunnelKind,
    pieces,
    weight_bytes,
)
from tpuserve_server.tunnel.response import TunnelResponse

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

_LOST: Final = RpcFailure(Code.UNAVAILABLE, ENGINE_ENDED)


class EngineError(Exception):
    """The engine did not complete a response that had begun, or failed. The client gets none of the details."""


class Tunnel:
    """ASGI application that carries each `http` call to the engine. The event loop's thread owns it.

    If the engine has ended, a call gets UNAVAILABLE or status 503. It raises EngineError if a REST response has begun
    by then, or if the application in the engine raised an error. The host then closes the stream, as without a tunnel.
    """

    def __init__(self, connection: Connection, in_flight: InFlight, clock: Clock | None = None) -> None:
        """Carry calls over `connection`, and count them in `in_flight`."""
        self._connection = connection
        self._in_flight = in_flight
        self._clock = clock or SystemClock()
        self._numbers = itertools.count()
        self._calls: dict[int, _Call] = {}

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers of the engine's messages."""
        return {
            TunnelKind.ASK: self._on_ask,
            TunnelKind.MESSAGE: self._on_message,
            TunnelKind.BODY: self._on_body,
            TunnelKind.ENDED: self._on_ended,
        }

    def end(self) -> None:
        """Fail all calls, because the engine has ended."""
        for call in self._calls.values():
            call.finish(_End.LOST)

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer an `http` scope. Returns once the engine has finished it."""
        await self.carry(scope, receive, send, None)

    async def carry(self, scope: "Scope", receive: "Receive", send: "Send", first: "Message | None") -> None:
        """Answer an `http` scope, of whose request the caller may have read the `first` message."""
        response = TunnelResponse(scope, send)
        if not self._connection.is_open:
            return await response.fail(_LOST)
        call = _Call(next(self._numbers), self._connection, receive, first)
        self._calls[call.number] = call
        # Only the engine knows which gRPC calls are streams. It ends those, and completes the others.
        end_streams = partial(self._end_streams, asyncio.current_task()) if response.is_grpc else None
        self._in_flight.begin()
        if end_streams is not None:
            self._in_flight.begin_stream(end_streams)
        try:
            call.open(scope, self._clock.monotonic_s() - scope.get(LAG_KEY, 0.0))
            await _pass_on(call, response)
        except asyncio.CancelledError:
            self._connection.send(TunnelKind.CANCEL, NUMBER.pack(call.number))
            if not (self._in_flight.is_cut and response.can_fail):
                raise
            await response.fail(SHUTTING_DOWN)
        finally:
            del self._calls[call.number]
            call.close()
            if end_streams is not None:
                self._in_flight.end_stream(end_streams)
            self._in_flight.end()
        return None

    def _end_streams(self, task: "asyncio.Task[None] | None") -> None:
        if self._in_flight.is_cut and task is not None:
            task.cancel()
        else:
            self._connection.send(TunnelKind.END_STREAMS, b"")

    # Messages for calls that have ended here are dropped.

    def _on_ask(self, payload: memoryview) -> None:
        [number] = NUMBER.unpack(payload)
        if (call := self._calls.get(number)) is not None:
            call.ask()

    def _on_message(self, payload: memoryview) -> None:
        number, message = pickle.loads(payload)
        if (call := self._calls.get(number)) is not None:
            call.add(message)

    def _on_body(self, payload: memoryview) -> None:
        number, flags = BODY_HEAD.unpack_from(payload)
        if (call := self._calls.get(number)) is not None:
            body = bytes(payload[BODY_HEAD.size :])
            call.add({"type": "http.response.body", "body": body, "more_body": bool(flags & MORE)})

    def _on_ended(self, payload: memoryview) -> None:
        number, flags = BODY_HEAD.unpack(payload)
        if (call := self._calls.get(number)) is not None:
            call.finish(_End.FAILED if flags & FAILED else _End.ANSWERED)


class _End(enum.Enum):
    ANSWERED = enum.auto()
    FAILED = enum.auto()
    LOST = enum.auto()


class _Call:
    """One call. The window of the response bounds its unread messages."""

    def __init__(self, number: int, connection: Connection, receive: "Receive", first: "Message | None") -> None:
        self.number = number
        self.end: _End | None = None
        self.is_gone = False
        self._connection = connection
        self._receive = receive
        self._first = first
        self._messages: deque[Message] = deque()
        self._changed: asyncio.Future[None] | None = None
        self._asked: asyncio.Task[None] | None = None
        self._passed_bytes = 0

    def open(self, scope: "Scope", arrived_s: float) -> None:
        """Begin the call in the engine."""
        first = None
        if self._first is not None and self._first["type"] != DISCONNECT:
            body = self._first.get("body", b"")
            if len(body) <= PIECE_BYTES:
                # The engine gets it without a request.
                first, self._first = (body, self._first.get("more_body", False)), None
        carried = {key: scope[key] for key in CARRIED_KEYS if key in scope}
        opening: Opening = (self.number, carried, arrived_s, CERTIFICATE_KEY in scope, first)
        self._connection.send(TunnelKind.OPEN, pickle.dumps(opening, protocol=5))

    def ask(self) -> None:
        """Send the engine the next message of the request, once it arrives."""
        self._asked = asyncio.create_task(self._answer())

    def add(self, message: "Message") -> None:
        """Add a message of the response."""
        self._messages.append(message)
        self._wake()

    def finish(self, end: _End) -> None:
        """End the response after the messages until now."""
        self.end = end
        self._wake()

    async def next(self) -> "Message | None":
        """Return the next message of the response, or None at its end."""
        while not self._messages:
            if self.end is not None:
                return None
            self._changed = asyncio.get_running_loop().create_future()
            await self._changed
        return self._messages.popleft()

    def passed(self, size_bytes: int) -> None:
        """Count bytes of the response that the host has accepted."""
        self._passed_bytes += size_bytes
        if self._passed_bytes >= WINDOW_BYTES // 2:
            self._connection.send(TunnelKind.ROOM, ROOM_HEAD.pack(self.number, self._passed_bytes))
            self._passed_bytes = 0

    def leave(self) -> None:
        """Report that the client has disconnected."""
        self.is_gone = True
        self._connection.send(TunnelKind.GONE, NUMBER.pack(self.number))

    def close(self) -> None:
        """Read no more of the request."""
        if self._asked is not None:
            self._asked.cancel()

    async def _answer(self) -> None:
        message = await self._next_request()
        if message["type"] == DISCONNECT:
            self._send_part(b"", DISCONNECTED)
            return
        is_large = len(message.get("body", b"")) > PIECE_BYTES
        for piece, flags in pieces(message):
            self._send_part(piece, flags)
            if is_large:
                await self._connection.drain()

    async def _next_request(self) -> "Message":
        if self._first is not None:
            first, self._first = self._first, None
            return first
        try:
            # Do not cancel it: the host owns the future in it, and will set its result.
            arriving = asyncio.ensure_future(self._receive())
            arriving.add_done_callback(_retrieve)
            return await asyncio.shield(arriving)
        except Exception:  # An error in `receive` also means that the client is gone.
            return {"type": DISCONNECT}

    def _send_part(self, piece: bytes | memoryview, flags: int) -> None:
        self._connection.send(TunnelKind.REQUEST, BODY_HEAD.pack(self.number, flags) + piece)

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)


def _retrieve(arriving: "asyncio.Future[Message]") -> None:
    """Keep the event loop from logging an error of a message that no one awaits any more."""
    if not arriving.cancelled():
        arriving.exception()


async def _pass_on(call: _Call, response: TunnelResponse) -> None:
    """Pass on the response, to its end."""
    while (message := await call.next()) is not None:
        if call.is_gone:
            continue
        try:
            await response.send(message)
        except OSError:  # ASGI's signal for a disconnect.
            call.leave()
        else:
            if message["type"] == "http.response.body":
                call.passed(weight_bytes(message["body"]))
    if call.end is _End.ANSWERED or call.is_gone or response.is_complete:
        return
    if call.end is _End.FAILED:
        raise EngineError("The engine could not answer a request; see its error before this one")
    if not response.can_fail:
        raise EngineError(ENGINE_ENDED)
    await response.fail(_LOST)
