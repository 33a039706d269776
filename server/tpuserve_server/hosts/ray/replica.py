"""Replica: the class that Ray Serve runs in each replica. It has a function for each gRPC method."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuserve_server.core.terms.deadline import SystemClock
from tpuserve_server.hosts.application import Application, HostError
from tpuserve_server.hosts.ray.calls import ReplicaCalls, ReplicaContext, Response, Serialized
from tpuserve_server.hosts.ray.demand_policy import DEMAND
from tpuserve_server.protocols.grpc_methods import IN_RAY

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


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a replica. The rule of a replica guards the methods and routes of `application`.

    `configure` serves the models of a ModelServerConfig in JSON form, and waits until they are available. It raises
    HostError if the configuration is invalid, or a model cannot be loaded.
    Messages above `max_message_bytes` are refused.
    `demand` returns the work that arrived lately, in relation to what the replica can do. `publish_metrics` sends the
    current metrics to Ray.
    """

    application: Application
    configure: Callable[[Mapping[str, Any]], Awaitable[None]]
    max_message_bytes: int
    demand: Callable[[], float]
    publish_metrics: Callable[[], None]


class Replica:
    """One application in a replica of Ray Serve. Ray calls all methods on the replica's event loop."""

    def __init__(self, build: Callable[[], Parts]) -> None:
        """Build the application, without loading a model."""
        self._parts = build()
        application = self._parts.application
        self.calls = ReplicaCalls(application.rpc, application.receiving, self._parts.max_message_bytes, SystemClock())
        self._replaced: asyncio.Task[object] | None = None

    async def __serve_build_asgi_app__(self) -> "ASGIApp":
        """Start the application and wait for its models. Ray then mounts the REST application.

        Raises:
            HostError: no model of the start can be loaded.
        """
        application = self._parts.application
        await application.start()
        ready, failed = asyncio.create_task(application.ready()), asyncio.create_task(application.failure())
        try:
            await asyncio.wait({ready, failed}, return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                await application.stop()
                raise HostError(failed.result())
        finally:
            ready.cancel()
            failed.cancel()
        self._replaced = asyncio.create_task(application.replacement())
        return WithLifespan(application.rest, self._stop)

    async def reconfigure(self, user_config: Mapping[str, Any]) -> None:
        """Serve the models of `user_config`. Ray calls it at the start, and after a change of `user_config` alone."""
        await self._parts.configure(user_config)

    async def check_health(self) -> None:
        """Publish metrics. Raises HostError if another process should take the place of this one."""
        if self._replaced is not None and self._replaced.done():
            raise HostError(f"Replace this replica: {self._replaced.result()}")
        try:
            await asyncio.to_thread(self._parts.publish_metrics)
        except Exception:  # Ray would replace a replica that serves well.
            _log.exception("Publishing metrics failed")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the metric of `DemandPolicy`."""
        return {DEMAND: self._parts.demand()}

    async def _stop(self) -> None:
        if self._replaced is not None:
            self._replaced.cancel()
        self._parts.application.drain()
        await self._parts.application.stop()


def _unary(path: str) -> Callable[[Replica, bytes | Serialized, ReplicaContext], Awaitable[Response]]:
    # Ray finds the context by the name of the parameter.
    async def call(self: Replica, request: bytes | Serialized, grpc_context: ReplicaContext) -> Response:
        return await self.calls.unary(path, request, grpc_context)

    return call


def _stream(
    path: str,
) -> Callable[[Replica, AsyncIterator[bytes | Serialized], ReplicaContext], AsyncIterator[Response]]:
    async def call(
        self: Replica, requests: AsyncIterator[bytes | Serialized], grpc_context: ReplicaContext
    ) -> AsyncIterator[Response]:
        async for response in self.calls.stream(path, requests, grpc_context):
            yield response

    return call


# Ray calls the function of the replica that has the method's name.
for _method in IN_RAY:
    setattr(Replica, _method.name, _stream(_method.path) if _method.is_stream else _unary(_method.path))
