"""ASGI's lifespan around the REST application: Ray Serve sends `lifespan` scopes, and hosts send only `http` ones."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class WithLifespan:
    """The REST application, which calls `stop` when Ray stops the replica. Websockets are refused."""

    def __init__(self, rest: "ASGIApp", stop: Callable[[], Awaitable[None]]) -> None:
        """Stop with `stop`, after the last request."""
        self._rest = rest
        self._stop = stop

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Run the application for one request, or wait for the end of the replica."""
        if scope["type"] == "http":
            await self._rest(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _live(self, receive: "Receive", send: "Send") -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._stop()
        await send({"type": "lifespan.shutdown.complete"})
