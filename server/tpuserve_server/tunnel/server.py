"""TunnelServer: the engine's side of the ASGI calls of one front-end process."""

import asyncio
import logging
import pickle
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from tpuserve_server.core.deadline import Clock, SystemClock
from tpuserve_server.frontends.http.headers import LAG_KEY
from tpuserve_server.hosts.disconnects import DISCONNECT
from tpuserve_server.hosts.envoy.client_certificate import names_of_scope
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.identity.certificate import CERTIFICATE_KEY
from tpuserve_server.link.connection import Connection, Handler
from tpuserve_server.tunnel.messages import (
    BODY_HEAD,
    DISCONNECTED,
    FAILED,
    MORE,
    NUMBER,
    PART,
    PIECE_BYTES,
    ROOM_HEAD,
    WINDOW_BYTES,
    Opening,
    TunnelKind,
    pieces,
    weight_bytes,
)

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Scope

_log = logging.getLogger(__name__)


class TunnelServer:
    """Runs an application for the calls of one front-end, each in a task. The event loop's thread owns it."""

    def __init__(self, connection: Connection, app: "ASGIApp", in_flight: InFlight, clock: Clock | None = None) -> None:
        """Answer over `connection` with `app`, whose calls of this front-end alone `in_flight` counts."""
        self._connection = connection
        self._app = app
        self._in_flight = in_flight
        self._clock = clock or SystemClock()
        self._calls: dict[int, _Call] = {}

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers of the front-end's messages."""
        return {
            TunnelKind.OPEN: self._on_open,
            TunnelKind.REQUEST: self._on_request,
            TunnelKind.ROOM: self._on_room,
            TunnelKind.GONE: self._on_gone,
            TunnelKind.CANCEL: self._on_cancel,
            TunnelKind.END_STREAMS: self._on_end_streams,
        }

    def end(self) -> None:
        """Cancel all calls, because the front-end has ended."""
        for call in self._calls.values():
            call.cancel()

    def _on_open(self, payload: memoryview) -> None:
        opening: Opening = pickle.loads(payload)
        number, scope, arrived_s, has_certificate, first = opening
        scope[LAG_KEY] = max(self._clock.monotonic_s() - arrived_s, 0.0)
        if has_certificate:
            scope[CERTIFICATE_KEY] = partial(names_of_scope, scope)
        call = self._calls[number] = _Call(number, self._connection)
        if first is not None:
            body, more = first
            call.add(body, MORE if more else 0)
        call.task = asyncio.create_task(self._run(call, scope))
        # A task that is cancelled before its first step runs nothing of its coroutine.
        call.task.add_done_callback(partial(self._end_call, number))

    async def _run(self, call: "_Call", scope: "Scope") -> bool:
        """Run the application, and return whether it has answered."""
        try:
            await self._app(scope, call.receive, call.send)
            return True
        except Exception as error:  # The top of a call: the front-end learns of every error, and the client of none.
            if call.is_gone and isinstance(error, OSError):
                return True  # The application has sent to a client that has disconnected, which is normal.
            _log.exception("Unexpected error in %s %s", scope["method"], scope["path"])
            return False

    def _end_call(self, number: int, task: "asyncio.Task[bool]") -> None:
        del self._calls[number]
        flags = 0 if not task.cancelled() and task.result() else FAILED
        self._connection.send(TunnelKind.ENDED, BODY_HEAD.pack(number, flags))

    # Messages for calls that have ended here are dropped.

    def _on_request(self, payload: memoryview) -> None:
        number, flags = BODY_HEAD.unpack_from(payload)
        if (call := self._calls.get(number)) is None:
            return
        if flags & DISCONNECTED:
            call.disconnect()
        else:
            call.add(bytes(payload[BODY_HEAD.size :]), flags)

    def _on_room(self, payload: memoryview) -> None:
        number, size_bytes = ROOM_HEAD.unpack(payload)
        if (call := self._calls.get(number)) is not None:
            call.make_room(size_bytes)

    def _on_gone(self, payload: memoryview) -> None:
        [number] = NUMBER.unpack(payload)
        if (call := self._calls.get(number)) is not None:
            call.leave()

    def _on_cancel(self, payload: memoryview) -> None:
        [number] = NUMBER.unpack(payload)
        if (call := self._calls.get(number)) is not None:
            call.cancel()

    def _on_end_streams(self, _payload: memoryview) -> None:
        self._in_flight.end_streams()


class _Call:
    """The `receive` and `send` of one call."""

    task: "asyncio.Task[bool]"

    def __init__(self, number: int, connection: Connection) -> None:
        self.number = number
        self._connection = connection
        self._unread: deque[Message] = deque()
        # Whether the front-end owes a message, or the rest of one.
        self._is_owed = False
        self._has_left = False
        # Whether the host of the front-end refuses to send.
        self.is_gone = False
        # Bytes of the response that the front-end has not passed on.
        self._ahead_bytes = 0
        self._changed: asyncio.Future[None] | None = None

    async def receive(self) -> "Message":
        """Receive the next message. Safe to cancel: a later call then gets the message."""
        while not self._unread:
            if self._has_left:
                return {"type": DISCONNECT}
            if not self._is_owed:
                self._is_owed = True
                self._connection.send(TunnelKind.ASK, NUMBER.pack(self.number))
            await self._change()
        return self._unread.popleft()

    async def send(self, message: "Message") -> None:
        """Send a message, and wait for room. Raises OSError if the client has disconnected."""
        if message["type"] != "http.response.body":
            self._check_client()
            self._connection.send(TunnelKind.MESSAGE, pickle.dumps((self.number, message), protocol=5))
            return
        for piece, flags in pieces(message):
            while self._ahead_bytes >= WINDOW_BYTES and not self.is_gone:
                await self._change()
            self._check_client()
            self._connection.send(TunnelKind.BODY, BODY_HEAD.pack(self.number, flags) + piece)
            self._ahead_bytes += weight_bytes(piece)
            # A short body leaves in the same system call as the messages around it.
            if len(piece) == PIECE_BYTES:
                await self._connection.drain()

    def add(self, body: bytes, flags: int) -> None:
        """Add a part of the request."""
        self._is_owed = bool(flags & PART)
        self._unread.append({"type": "http.request", "body": body, "more_body": bool(flags & MORE)})
        self._wake()

    def make_room(self, size_bytes: int) -> None:
        """Count bytes that the front-end has passed on."""
        self._ahead_bytes -= size_bytes
        self._wake()

    def disconnect(self) -> None:
        """Let `receive` report a disconnect after the messages until now. The host decides whether `send` fails."""
        self._has_left = True
        self._wake()

    def leave(self) -> None:
        """Let `send` fail, and `receive` report a disconnect."""
        self.is_gone = True
        self.disconnect()

    def cancel(self) -> None:
        """Cancel the call."""
        self.leave()
        self.task.cancel()

    def _check_client(self) -> None:
        if self.is_gone:
            raise OSError("The client disconnected")

    async def _change(self) -> None:
        # A reader and a sender may wait at the same time.
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
