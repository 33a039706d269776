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
from typing import TYPE_CHECKING, Any

from tpuserve_server.core.certificate_status import CertificateStatus
from tpuserve_server.frontends.http.headers import LAG_KEY
from tpuserve_server.hosts.application import Application, Listening
from tpuserve_server.hosts.disconnects import ConformingReceive, DisconnectWatch
from tpuserve_server.hosts.ending import CUT_TIMEOUT_S, LOST_REQUESTS, end_process, stop_in_time
from tpuserve_server.hosts.envoy.admin import EnvoyAdmin, drain, until
from tpuserve_server.hosts.envoy.arrival import lag_s
from tpuserve_server.hosts.envoy.channel import Channel, ChildSetup
from tpuserve_server.hosts.envoy.client_certificate import names_of_scope
from tpuserve_server.hosts.envoy.config import DRAIN_GRACE_S
from tpuserve_server.hosts.envoy.figures import TIMEOUT_S, EnvoyFigures
from tpuserve_server.hosts.envoy.header_limit import has_long_headers, refuse_headers
from tpuserve_server.hosts.envoy.shedding import Shedding
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.grpc.asgi import GrpcOverAsgi
from tpuserve_server.hosts.handover import FAREWELL_S, Handover
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.rest_calls import RestCalls
from tpuserve_server.identity.certificate import CERTIFICATE_KEY

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from starlette.types import Receive, Scope, Send

_log = logging.getLogger(__name__)

# Exit code after the loss of the supervisor, which is the only process that reads it.
_ORPHANED = 1


class EnvoyEntry:
    """Builds the Application when Envoy starts. Pass an instance to `run` in host.py as `module:attribute`."""

    # asgiref's mark of ASGI 3. Without it, the embedding assumes ASGI 2 if `__call__` is not a coroutine function.
    _asgi_single_callable = True

    def __init__(self, factory: Callable[[], Application]) -> None:
        """Call `factory` later: once, on the event loop, before any port is open."""
        self._factory = factory
        self._in_flight = InFlight()
        self._watch = DisconnectWatch()
        self._orders: asyncio.Task[None] | None = None

    def __call__(  # all branches return a coroutine; `async def` would add a frame to the hot paths
        self, scope: "Scope", receive: "Receive", send: "Send"
    ) -> "Coroutine[Any, Any, None]":
        """Answer an ASGI scope: `lifespan` once, then `http` for gRPC and REST."""
        if scope["type"] == "lifespan":
            return self._lifespan(receive, send)
        if has_long_headers(scope):
            return refuse_headers(send, is_grpc=self._is_grpc(scope))
        scope[LAG_KEY] = lag_s(scope)
        if self._has_client_ca:
            scope[CERTIFICATE_KEY] = partial(names_of_scope, scope)
        if self._is_grpc(scope):
            return self._grpc(scope, receive, send)
        return self._answer_rest(scope, ConformingReceive(receive, self._watch), send)

    async def _answer_rest(self, scope: "Scope", receive: ConformingReceive, send: "Send") -> None:
        try:
            await self._rest(scope, receive, send)
        finally:
            receive.close()

    def _is_grpc(self, scope: "Scope") -> bool:
        """Return whether gRPC handles a request, by its content type, on any port.

        gRPC also handles requests for its methods with other content types, in order to refuse them.
        """
        for name, value in scope["headers"]:
            if name == b"content-type":
                return value.startswith(b"application/grpc") or scope["path"] in self._rpc
        return scope["path"] in self._rpc

    async def _lifespan(self, receive: "Receive", send: "Send") -> None:
        await receive()
        setup = ChildSetup.from_environment()
        channel = await Channel.over(socket.socket(fileno=setup.channel))
        try:
            application = self._factory()
            await application.start()
        except Exception as error:  # Report every error: the supervisor must learn that the application cannot serve.
            await _fail(error, channel)
            return
        handover = Handover(setup.options)
        following = asyncio.create_task(_follow(application, channel, handover))
        if setup.options.opens_when_ready:
            channel.send("loading")
            if not await _becomes_ready(application, channel, following, setup):
                return
        self._carry(application, setup)
        self._orders = asyncio.create_task(self._obey(application, channel, setup, following, handover))
        channel.send("ready")
        await send({"type": "lifespan.startup.complete"})
        await receive()
        # Another process made Envoy exit, and Envoy has already closed every connection.
        self._orders.cancel()
        await asyncio.wait([self._orders])
        await _end(application, channel, 0)

    def _carry(self, application: Application, setup: ChildSetup) -> None:
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
            gate=application.overload_gate,
        )

    async def _obey(
        self,
        application: Application,
        channel: Channel,
        setup: ChildSetup,
        following: "asyncio.Task[bool]",
        handover: Handover,
    ) -> None:
        """Drain and end the process when the supervisor orders it, is gone, or should start another process.

        If the application can no longer begin to serve, the process ends at once: there is nothing to drain.
        """
        replacing = asyncio.create_task(application.replacement())
        if not await _one_ends(application, channel, setup, following, replacing):
            return
        was_ordered = not following.done() or following.result()
        if not was_ordered:
            _log.error("The supervisor has ended. The server drains and stops")
        elif not following.done():
            replacement = replacing.result()
            channel.send("replace", damage=replacement.damage, why=replacement.why)
        replacing.cancel()
        application.drain()
        # The supervisor's wait is for load balancers. They have already seen that this process is not ready.
        delay_s = setup.options.drain_delay_s if following.done() else 0
        has_successor, _ = await asyncio.gather(handover.end(), asyncio.sleep(delay_s))
        farewell_s = FAREWELL_S if has_successor else DRAIN_GRACE_S
        is_complete = await self._finish(
            EnvoyAdmin(Path(setup.admin_socket)), farewell_s, setup.options.drain_timeout_s
        )
        code = 0 if is_complete else LOST_REQUESTS
        await _end(application, channel, code if was_ordered else _ORPHANED)

    async def _finish(self, admin: EnvoyAdmin, farewell_s: float, timeout_s: float) -> bool:
        """Wait for requests in flight, here and in Envoy, for at most `timeout_s`, then cancel the rest.

        Return whether every request got its response.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await drain(admin, self._in_flight.finish, farewell_s=min(farewell_s, timeout_s))
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
        return " and ".join(parts)

    async def _cut(self, admin: EnvoyAdmin) -> None:
        """Cancel requests in flight, and wait briefly until their error responses are sent."""
        self._in_flight.cut()
        with contextlib.suppress(OSError, HTTPException):  # TimeoutError is also an OSError.
            async with asyncio.timeout(CUT_TIMEOUT_S):
                await self._in_flight.finish()
                await until(admin.is_quiet)


async def _fail(error: Exception, channel: Channel) -> None:
    """Report the error and end the process. A failed startup would make Envoy log another error before the reason."""
    if not isinstance(error, HostError):
        _log.error("The application could not start", exc_info=error)
    channel.send("failed", why=str(error) or type(error).__name__)
    await channel.close()
    end_process(1)


async def _becomes_ready(
    application: Application, channel: Channel, following: "asyncio.Task[bool]", setup: ChildSetup
) -> bool:
    """Wait until the application is ready, and return True.

    End the process instead if the supervisor orders a drain or is gone, or if the application has failed.
    """
    becoming = asyncio.create_task(application.ready())
    try:
        if not await _one_ends(application, channel, setup, following, becoming):
            return False
    finally:
        becoming.cancel()
    if following.done():
        await _end(application, channel, 0 if following.result() else _ORPHANED)
    return not following.done()


async def _one_ends(application: Application, channel: Channel, setup: ChildSetup, *tasks: "asyncio.Task[Any]") -> bool:
    """Wait for one of `tasks` and return True. End the process if the application can no longer begin to serve.

    A process that replaces another stays instead: its status has the reason, and a new version may repair the model.
    """
    failing = asyncio.create_task(_never() if setup.is_respawn else application.failure())
    try:
        await asyncio.wait({failing, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        failing.cancel()
    if any(task.done() for task in tasks):
        return True
    tasks[0].cancel()
    channel.send("failed", why=failing.result())
    await _end(application, channel, 1)
    return False


async def _never() -> str:
    never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    return await never


async def _follow(application: Application, channel: Channel, handover: Handover) -> bool:
    """Follow the supervisor until it orders the drain. Return False if the supervisor is gone before."""
    async for order in channel.messages():
        if order["type"] == "announce":
            listening = Listening(**order["listening"])
            handover.begin(listening)
            application.announce(listening)
        elif order["type"] == "certificates":
            application.show_certificates(CertificateStatus(**order["status"]))
        elif order["type"] == "reload":
            application.reload()
        elif order["type"] == "drain":
            return True
    return False


async def _end(application: Application, channel: Channel, code: int) -> None:
    try:
        await stop_in_time(application)
    except Exception:  # The process must end after every error.
        _log.exception("The application failed to stop")
        code = 1
    await channel.close()
    end_process(code)
