"""A front-end and an engine in one process, with the tunnel between them over a real socket pair."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.support.open_gate import OPEN_GATE
from tpuserve_server.core.budgets.receiving import ReceivingBudget
from tpuserve_server.core.budgets.sending import SendingBudget
from tpuserve_server.core.deadline import SystemClock
from tpuserve_server.core.errors import NotFound
from tpuserve_server.frontends.guarded import admit_every_call
from tpuserve_server.frontends.rpc import CallContext, RpcTable, StreamMethod, UnaryMethod
from tpuserve_server.hosts.disconnects import DisconnectWatch
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.identity.access import OPEN
from tpuserve_server.link.connection import Connection
from tpuserve_server.tunnel.client import Tunnel
from tpuserve_server.tunnel.engine_calls import EngineCalls
from tpuserve_server.tunnel.server import TunnelServer

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_MESSAGE_BYTES = 128 << 20
JSON = [(b"content-type", b"application/json")]
START: "Message" = {"type": "http.response.start", "status": 200, "headers": [(b"x-engine", b"1")]}


class EngineApplication:
    """Methods and a REST application of every kind. Implements what EngineCalls reads of an Application."""

    def __init__(self, table: RpcTable | None = None, rest: "ASGIApp | None" = None) -> None:
        self.receiving = ReceivingBudget(512 << 20, 256 << 20, SystemClock())
        self.sending = SendingBudget(512 << 20, 256 << 20, 30, SystemClock())
        self.overload_gate = OPEN_GATE
        self.began = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.contexts: list[CallContext] = []
        own: RpcTable = {
            "/echo.Echo/Unary": UnaryMethod(self.unary, OPEN),
            "/echo.Echo/Held": UnaryMethod(self.held, OPEN),
            "/echo.Echo/Each": StreamMethod(self.each, OPEN),
            "/echo.Echo/Watch": StreamMethod(self.watch, OPEN),
        }
        self.rpc = admit_every_call({**own, **(table or {})})
        self.rest: ASGIApp = rest or self.answer_rest

    async def unary(self, request: bytes, context: CallContext) -> bytes:
        self.contexts.append(context)
        return request

    async def held(self, _request: bytes, _context: CallContext) -> bytes:
        await self._wait()
        return b""

    async def each(self, requests: AsyncIterator[bytes], _context: CallContext) -> AsyncIterator[bytes]:
        async for request in requests:
            if request == b"fail":
                raise NotFound("in the stream")
            yield request

    async def watch(self, _requests: AsyncIterator[bytes], _context: CallContext) -> AsyncIterator[bytes]:
        yield b"first"
        await self._wait()

    async def answer_rest(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Wait for a disconnect (/held), begin and wait (/begun), raise (/bug), or echo the body."""
        if scope["path"] == "/bug":
            raise ZeroDivisionError("a secret of the server")
        if scope["path"] == "/begun":
            await send(START)
            await self._wait()
        body = bytearray()
        while (message := await receive())["type"] != "http.disconnect":
            body += message["body"]
            if not message["more_body"]:
                break
        if scope["path"] == "/held":
            self.began.set()
            assert (await receive())["type"] == "http.disconnect"
            self.cancelled.set()
        await send(START)
        await send({"type": "http.response.body", "body": bytes(body)})

    async def _wait(self) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@dataclass
class House:
    """Both ends. `app` is what runs in the engine."""

    front: Connection
    engine: Connection
    tunnel: Tunnel
    server: TunnelServer
    app: "ASGIApp"
    in_flight: InFlight = field(default_factory=InFlight)
    engine_in_flight: InFlight = field(default_factory=InFlight)

    def end_engine(self) -> None:
        """End the engine's side, as the end of its process does."""
        self.engine.close()
        self.server.end()


@asynccontextmanager
async def tunnelled(app: "ASGIApp | EngineApplication") -> AsyncIterator[House]:
    """Start both ends around an application of the engine, or an ASGI application in its place."""
    ends = socket.socketpair()
    front, engine = Connection(ends[0]), Connection(ends[1])
    in_flight, engine_in_flight = InFlight(), InFlight()
    if isinstance(app, EngineApplication):
        app = EngineCalls(app, MAX_MESSAGE_BYTES, engine_in_flight, DisconnectWatch(0.001))
    tunnel, server = Tunnel(front, in_flight), TunnelServer(engine, app, engine_in_flight)
    front.start(tunnel.handlers(), tunnel.end)
    engine.start(server.handlers(), server.end)
    try:
        yield House(front, engine, tunnel, server, app, in_flight, engine_in_flight)
    finally:
        front.close()
        engine.close()
        server.end()


async def until(is_true: Callable[[], bool]) -> None:
    """Let the event loop run until a condition holds."""
    async with asyncio.timeout(60):
        while not is_true():  # noqa: ASYNC110  # the conditions are of objects that set no event
            await asyncio.sleep(0.001)


def rest_scope() -> "Scope":
    return {"type": "http", "method": "POST", "path": "/", "headers": JSON}
