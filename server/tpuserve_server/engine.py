"""FrontEnds: the engine's side of all front-end processes."""

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Final

from tpuserve_server.core.registry import ModelRegistry
from tpuserve_server.hosts.disconnects import DisconnectWatch
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.link.connection import Connection
from tpuserve_server.link.engine import EngineLink
from tpuserve_server.link.measuring import ShareReceiver
from tpuserve_server.link.publisher import EngineRules
from tpuserve_server.tunnel.engine_calls import EngineCalls
from tpuserve_server.tunnel.server import TunnelServer

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from tpuserve_server.hosts.application import Application


# A front-end adopts a state in milliseconds.
_ADOPTION_S: Final = 1.0


class FrontEnds:
    """Serves each front-end until it ends. The event loop's thread owns it."""

    def __init__(
        self, registry: ModelRegistry, rules: EngineRules, shares: ShareReceiver, max_message_bytes: int
    ) -> None:
        """Serve the models of `registry`, and add the measurements of front-ends to `shares`."""
        self._registry = registry
        self._rules = rules
        self._shares = shares
        self._max_message_bytes = max_message_bytes
        self._links: set[EngineLink] = set()

    async def serve(self, application: "Application", end: socket.socket) -> None:
        """Serve the front-end at the other end of a socket, until it ends. Calls that it tunnels run `application`."""
        connection, in_flight = Connection(end), InFlight()
        calls = EngineCalls(application, self._max_message_bytes, in_flight, DisconnectWatch())
        tunnel = TunnelServer(connection, _Synced(calls, self), in_flight)
        share_handlers, end_shares = self._shares.open(connection)
        ended = asyncio.Event()
        link = EngineLink(
            connection,
            self._registry,
            self._rules,
            {**tunnel.handlers(), **share_handlers},
            lambda _: ended.set(),
        )
        self._links.add(link)
        try:
            await ended.wait()
        finally:
            self._links.remove(link)
            link.close()
            tunnel.end()
            end_shares()

    def changed(self) -> None:
        """Publish the state to all front-ends soon. Callable from any thread."""
        # Another thread may add a link meanwhile, which publishes the state itself.
        for link in tuple(self._links):
            link.publisher.changed()

    async def synced(self) -> None:
        """Wait until every front-end knows the models as they are now, or one has not adopted them for a second."""
        behind = [link.publisher for link in self._links if not link.publisher.is_synced]
        if not behind:
            return
        # A front-end that stands still must not take the health checks of the server with it.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ADOPTION_S):
                for publisher in behind:
                    await publisher.synced()


class _Synced:
    """An application whose responses leave only when every front-end knows the state that they report.

    A client that has loaded a model, or that has found the server ready, may use another front-end next.
    """

    def __init__(self, app: "ASGIApp", front_ends: FrontEnds) -> None:
        self._app = app
        self._front_ends = front_ends

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        async def send_synced(message: "Message") -> None:
            await self._front_ends.synced()
            await send(message)

        await self._app(scope, receive, send_synced)
