"""The ASGI application that Envoy loads: it runs an Application, and follows the orders of the supervisor.

All code runs on the event loop of the embedding. Its thread is not Python's main thread, so it receives no signals, and
the supervisor blocks those that would end Envoy.
After the drain, the process ends with `os._exit`, because exit hooks of libraries report errors inside Envoy.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING

from tpuserve_formats.counted import counted
from tpuserve_server.core.budgets.sending import ResponseCut
from tpuserve_server.frontends.http.headers import LAG_KEY
from tpuserve_server.hosts.application import Application, HostOptions
from tpuserve_server.hosts.client_connections import ClientConnections
from tpuserve_server.hosts.disconnects import ConformingReceive, DisconnectWatch
from tpuserve_server.hosts.ending import CUT_TIMEOUT_S, LOST_REQUESTS
from tpuserve_server.hosts.envoy.admin import EnvoyAdmin, drain, until
from tpuserve_server.hosts.envoy.arrival import lag_s
from tpuserve_server.hosts.envoy.channel import Channel, ChildSetup
from tpuserve_server.hosts.envoy.client_certificate import names_of_scope
from tpuserve_server.hosts.envoy.config import DRAIN_GRACE_S
from tpuserve_server.hosts.envoy.figures import TIMEOUT_S, EnvoyFigures
from tpuserve_server.hosts.envoy.header_limit import has_long_headers, refuse_headers
from tpuserve_server.hosts.envoy.lifecycle import ORPHANED, Leaving, Lifecycle
from tpuserve_server.hosts.envoy.shedding import Shedding
from tpuserve_server.hosts.envoy.unsent import KEPT_BYTES, UnsentByEnvoy
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.grpc.asgi import GrpcOverAsgi
from tpuserve_server.hosts.grpc.headers import is_grpc_request
from tpuserve_server.hosts.handover import FAREWELL_S, Handover
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.rest_calls import RestCalls
from tpuserve_server.hosts.unread_response import ChargedResponses
from tpuserve_server.identity.certificate import CERTIFICATE_KEY

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from starlette.types import Receive, Scope, Send

    from tpuserve_server.hosts.python.rest_server import RestServer

_log = logging.getLogger(__name__)


class EnvoyEntry:
    """Builds the Application when Envoy starts. Pass an instance to `run` in host.py as `module:attribute`."""

    # asgiref's mark of ASGI 3. Without it, the embedding assumes ASGI 2 if `__call__` is not a coroutine function.
    _asgi_single_callable = True

    def __init__(self, factory: Callable[[], Application]) -> None:
        """Call `factory` later: once, on the event loop, before any port is open."""
        self._in_flight = InFlight()
        self._factory = factory
        self._watch = DisconnectWatch()
        self._orders: asyncio.Task[None] | None = None
        # Serves REST in place of Envoy.
        self._rest_server: RestServer | None = None

    def __call__(  # all branches return a coroutine; `async def` would add a frame to the hot paths
        self, scope: "Scope", receive: "Receive", send: "Send"
    ) -> "Awaitable[None]":
        """Answer an ASGI scope: `lifespan` once, then `http` for gRPC and REST."""
        if scope["type"] == "lifespan":
            return self._lifespan(receive, send)
        if has_long_headers(scope):
            return refuse_headers(send, is_grpc=is_grpc_request(scope, self._rpc))
        scope[LAG_KEY] = lag_s(scope)
        if self._has_client_ca:
            scope[CERTIFICATE_KEY] = partial(names_of_scope, scope)
        send = self._responses.charged(scope, receive, send)
        if is_grpc_request(scope, self._rpc):
            return self._grpc(scope, receive, send)
        return self._answer_rest(scope, ConformingReceive(receive, self._watch), send)

    async def _answer_rest(self, scope: "Scope", receive: ConformingReceive, send: "Send") -> None:
        try:
            await self._rest(scope, receive, send)
        except ResponseCut:
            # The connection ends, except that of a UNIX socket: the embedding then resets the stream for the error.
            if scope.get("client") is None:
                raise
        finally:
            receive.close()

    async def _lifespan(self, receive: "Receive", send: "Send") -> None:
        await receive()
        setup = ChildSetup.from_environment()
        channel = await Channel.over(socket.socket(fileno=setup.channel))
        handover = Handover(setup.options)
        lifecycle = await Lifecycle.start(self._factory, channel, setup, handover.begin)
        if lifecycle is None or not await lifecycle.open():
            return
        self._carry(lifecycle.application, setup)
        try:
            self._rest_server = await self._open_rest(lifecycle.application, setup.options)
        except HostError as error:
            await lifecycle.fail(error)
            return
        self._orders = asyncio.create_task(self._obey(lifecycle, setup, handover))
        lifecycle.report_ready(None if self._rest_server is None else self._rest_server.address)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        # Another process made Envoy exit, and Envoy has already closed every connection.
        self._orders.cancel()
        await asyncio.wait([self._orders])
        await lifecycle.end(0)

    async def _open_rest(self, application: Application, options: HostOptions) -> "RestServer | None":
        """Open the REST port in this process, unless Envoy does. Raises HostError."""
        if options.rest_server == "envoy" or options.rest_port is None:
            return None
        # Imported here, because few servers need uvicorn in Envoy.
        from tpuserve_server.hosts.python.rest_server import RestServer

        server = RestServer(application, options, self._in_flight, None)
        await server.start()
        return server

    def _carry(self, application: Application, setup: ChildSetup) -> None:
        self._responses = ChargedResponses(
            application.sending,
            end_connection=ClientConnections().end,
            keep=UnsentByEnvoy(application.sending).keep,
            keep_bytes=KEPT_BYTES,
        )
        self._rest = RestCalls(application.rest, self._in_flight, application.overload_gate)
        self._rpc = application.rpc
        self._has_client_ca = setup.has_client_ca
        application.add_metrics("envoy", EnvoyFigures(EnvoyAdmin(Path(setup.admin_socket), TIMEOUT_S)).page)
        self._shedding = Shedding(application.overload_gate, EnvoyAdmin(Path(setup.admin_socket)))
        self._grpc = GrpcOverAsgi(
            application.rpc,
            max_message_bytes=setup.options.max_message_bytes,
            in_flight=self._in_flight,
            watch=self._watch,
            receiving=application.receiving,
            sending=application.sending,
            gate=application.overload_gate,
        )

    async def _obey(self, lifecycle: Lifecycle[Application], setup: ChildSetup, handover: Handover) -> None:
        """Drain and end the process when the supervisor orders it, is gone, or should start another process."""
        leaving = await lifecycle.leaving()
        if leaving is None:
            return
        lifecycle.application.drain()
        # The supervisor's wait is for load balancers. They have already seen that this process is not ready.
        delay_s = 0 if leaving is Leaving.REPLACED else setup.options.drain_delay_s
        has_successor, _ = await asyncio.gather(handover.end(), asyncio.sleep(delay_s))
        farewell_s = FAREWELL_S if has_successor else DRAIN_GRACE_S
        is_complete = await self._finish(
            EnvoyAdmin(Path(setup.admin_socket)), farewell_s, setup.options.drain_timeout_s
        )
        code = 0 if is_complete else LOST_REQUESTS
        await lifecycle.end(ORPHANED if leaving is Leaving.ORPHANED else code)

    async def _finish(self, admin: EnvoyAdmin, farewell_s: float, timeout_s: float) -> bool:
        """Wait for requests in flight, here and in Envoy, for at most `timeout_s`, then cancel the rest.

        Return whether every request got its response.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(
                    drain(admin, self._in_flight.finish, farewell_s=min(farewell_s, timeout_s)),
                    self._close_rest(min(farewell_s, timeout_s / 2)),
                )
                return True
        except TimeoutError:
            unfinished = await self._describe_unfinished(admin)
            if not unfinished:
                # Only clients without a request were still connected.
                return True
            _log.error("Cancelled the requests that were still in flight after %g s: %s", timeout_s, unfinished)
        except (OSError, HTTPException) as error:
            _log.error(
                "Envoy's admin interface does not respond (%s). The server cancels the requests in flight", error
            )
        await self._cut(admin)
        return False

    async def _close_rest(self, farewell_s: float) -> None:
        if self._rest_server is not None:
            await self._rest_server.stop(farewell_s)

    async def _describe_unfinished(self, admin: EnvoyAdmin) -> str:
        """Describe the requests without a complete response, for people, or return "" if there are none."""
        in_application = self._in_flight.count
        try:
            unfinished = await asyncio.to_thread(EnvoyAdmin(admin.path, TIMEOUT_S).unfinished)
        except (OSError, HTTPException) as error:
            return f"{in_application} in the application; Envoy does not report its own ({error})"
        parts = []
        if requests := max(unfinished.requests, in_application):
            parts.append(f"{requests} without a complete response ({in_application} in the application)")
        if unfinished.unread_bytes:
            parts.append(f"{unfinished.unread_bytes} bytes of responses that clients have not read")
        if self._rest_server is not None and (count := self._rest_server.connections):
            parts.append(f"{counted(count, 'connection')} over REST with a response that was not read")
        return " and ".join(parts)

    async def _cut(self, admin: EnvoyAdmin) -> None:
        """Cancel requests in flight, and wait briefly until their error responses are sent."""
        self._in_flight.cut()
        with contextlib.suppress(OSError, HTTPException):  # TimeoutError is also an OSError.
            async with asyncio.timeout(CUT_TIMEOUT_S):
                await self._in_flight.finish()
                await until(admin.is_quiet)
