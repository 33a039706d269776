"""ServingProcess: runs the application and serves its addresses, under the orders of the supervisor.

At its end, it waits for the application's stop only for a limited time, and for no thread.
"""

import asyncio
import contextlib
import dataclasses
import logging
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from enum import Enum, auto
from functools import partial
from typing import Any, Final, NoReturn

import uvloop

from tpuserve_server.hosts.application import Application, HostError, Listening, TlsOptions
from tpuserve_server.hosts.certificates import Certificates
from tpuserve_server.hosts.channel import LOST_REQUESTS, ORPHANED, Channel, ProcessSetup
from tpuserve_server.hosts.endpoint import Endpoint
from tpuserve_server.hosts.handover import FAREWELL_S, Handover
from tpuserve_server.hosts.http_server import HttpServer
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.limits import DRAIN_UNREAD_S, raise_file_limit
from tpuserve_server.hosts.refusals import RateLimit
from tpuserve_server.observe.logs.background import WRITER_NAME

_log = logging.getLogger(__name__)

# Time for cancelled calls to send their error responses.
CUT_TIMEOUT_S = 1.0
# Time for the application to release its resources. The process cannot interrupt a model that loads or runs, and
# SIGKILL usually follows SIGTERM soon. The sum of both times is below the supervisor's timeout.
STOP_TIMEOUT_S = 5.0
# A process after another one lets connected clients wait for its models for at most this time.
_RESPAWN_S: Final = 10.0
# Time for busy clients to get a response that asks them to disconnect, if no other server takes their connections. At
# most half of the drain timeout.
_FAREWELL_S: Final = 1.0
# A busy client sends its next request within this time.
_BUSY_S: Final = 0.1

Order = dict[str, Any]


class _Leaving(Enum):
    """Why the process should drain: an order, the end of the supervisor, or damage that needs another process."""

    ORDERED = auto()
    ORPHANED = auto()
    REPLACED = auto()


def run(factory: Callable[[], Application], read_tls: Callable[[], TlsOptions] | None) -> None:
    """Serve until the supervisor orders the end, and end the process. Blocks; call it on the main thread.

    `factory` is called once, on the event loop. `read_tls` reads the certificates again for SIGHUP, and raises
    HostError if it cannot.
    """
    setup = ProcessSetup.from_environment()
    raise_file_limit(setup.options)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(factory, read_tls, setup))


async def _run(
    factory: Callable[[], Application], read_tls: Callable[[], TlsOptions] | None, setup: ProcessSetup
) -> None:
    channel = await Channel.over(socket.socket(fileno=setup.channel))
    orders = channel.messages()
    start = await anext(orders, None)
    if start is None:
        end_process(ORPHANED)
    tls = None if start["tls"] is None else TlsOptions(**start["tls"])
    setup = dataclasses.replace(setup, options=dataclasses.replace(setup.options, tls=tls))
    try:
        application = factory()
        await application.start()
    except Exception as error:  # Report every error: the supervisor must learn that the application cannot serve.
        await _fail(error, channel)
        return
    await ServingProcess(application, channel, orders, setup, read_tls).run()


async def _fail(error: Exception, channel: Channel) -> None:
    if not isinstance(error, HostError):
        _log.error("The application could not start", exc_info=error)
    channel.send("failed", why=str(error) or type(error).__name__)
    await channel.close()
    end_process(1)


class ServingProcess:
    """One application from its start to the end of the process. The event loop's thread owns it."""

    def __init__(
        self,
        application: Application,
        channel: Channel,
        orders: AsyncIterator[Order],
        setup: ProcessSetup,
        read_tls: Callable[[], TlsOptions] | None,
    ) -> None:
        """Follow `orders` from now on."""
        self._application = application
        self._channel = channel
        self._setup = setup
        self._options = options = setup.options
        self._in_flight = InFlight()
        self._handover = Handover(options)
        rate = RateLimit(options.max_requests_per_s) if options.max_requests_per_s else None
        sockets = {name: socket.socket(fileno=descriptor) for name, descriptor in setup.sockets.items()}
        self._server = HttpServer(partial(Endpoint, application, options, self._in_flight, rate), sockets, options)
        self._certificates = (
            None
            if options.tls is None
            else Certificates(options.tls, read_tls, self._use_certificates, application.show_certificates)
        )
        # True: the supervisor ordered the drain. False: it is gone.
        self._following = asyncio.create_task(self._follow(orders))

    async def run(self) -> None:
        """Open the addresses, serve, drain, and end the process."""
        if not await self._may_open():
            return
        try:
            await self._server.open(self._options.tls)
        except HostError as error:
            await _fail(error, self._channel)
            return
        self._channel.send("open")
        with self._polled_certificates():
            leaving = await self._leaving()
        if leaving is not None:
            await self._drain(leaving)

    async def _may_open(self) -> bool:
        """Wait until the addresses may open, and return True.

        End the process instead if the supervisor orders a drain or is gone, or if the application has failed.
        """
        self._channel.send("loading")
        if not (self._options.opens_when_ready or self._setup.is_respawn):
            return True
        becoming = asyncio.create_task(self._ready())
        try:
            if not await self._one_ends(self._following, becoming):
                return False
        finally:
            becoming.cancel()
        if self._following.done():
            await self._end(0 if self._following.result() else ORPHANED)
        return not self._following.done()

    async def _ready(self) -> None:
        """Wait for the models: without limit if the operator wants that, or briefly for clients that have connected."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if self._options.opens_when_ready else _RESPAWN_S):
                await self._application.ready()

    async def _leaving(self) -> _Leaving | None:
        """Wait until the process should drain, report a replacement to the supervisor, and return the reason.

        If the application can no longer begin to serve, end the process at once: there is nothing to drain.
        """
        replacing = asyncio.create_task(self._application.replacement())
        try:
            if not await self._one_ends(self._following, replacing):
                return None
            if self._following.done() and self._following.result():
                return _Leaving.ORDERED
            if self._following.done():
                _log.error("The supervisor has ended. The server drains and stops")
                return _Leaving.ORPHANED
            replacement = replacing.result()
            self._channel.send("replace", damage=replacement.damage, why=replacement.why)
            return _Leaving.REPLACED
        finally:
            replacing.cancel()

    async def _drain(self, leaving: _Leaving) -> None:
        """Leave new connections to others, finish the requests in flight, and end the process."""
        self._application.drain()
        self._server.say_farewell()
        # The operator's delay is for load balancers. They have already seen that this process is not ready.
        delay_s = 0 if leaving is _Leaving.REPLACED else self._options.drain_delay_s
        has_successor, _ = await asyncio.gather(self._handover.end(), asyncio.sleep(delay_s))
        # After a replacement, the sockets stay open for the next process, which accepts these connections.
        self._server.ignore_new_connections(for_good=leaving is not _Leaving.REPLACED)
        timeout_s, code = self._options.drain_timeout_s, 0
        try:
            async with asyncio.timeout(timeout_s):
                await self._say_farewell(FAREWELL_S if has_successor else min(_FAREWELL_S, timeout_s / 2))
                await self._finish()
        except TimeoutError:
            _log.error(
                "Cancelled the requests that were still in flight after %g s: %d without a complete response",
                timeout_s,
                self._in_flight.count,
            )
            self._in_flight.cut()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CUT_TIMEOUT_S):
                    await self._finish()
            code = LOST_REQUESTS
        await self._end(ORPHANED if leaving is _Leaving.ORPHANED else code)

    async def _say_farewell(self, timeout_s: float) -> None:
        """Wait until busy clients have got a response that asks them to connect again."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await asyncio.sleep(_BUSY_S)
                while self._server.take_farewells():  # noqa: ASYNC110  # It looks back at what came while it slept.
                    await asyncio.sleep(_BUSY_S)

    async def _finish(self) -> None:
        """Wait for the calls in flight, and briefly until clients have read the last bytes of their responses."""
        closing = asyncio.ensure_future(self._server.close())
        self._application.sending.shorten_timeout(DRAIN_UNREAD_S)
        await self._in_flight.finish()
        await asyncio.wait({closing}, timeout=DRAIN_UNREAD_S)

    async def _end(self, code: int) -> None:
        """Stop the application and end the process."""
        try:
            await stop_in_time(self._application)
        except Exception:  # The process must end after every error.
            _log.exception("The application failed to stop")
            code = 1
        await self._channel.close()
        end_process(code)

    async def _one_ends(self, *tasks: "asyncio.Task[Any]") -> bool:
        """Wait for one of `tasks` and return True. End the process if the application can no longer begin to serve.

        A process that replaces another stays instead: its status has the reason, and a new version may repair the
        model.
        """
        failing = asyncio.create_task(_never() if self._setup.is_respawn else self._application.failure())
        try:
            await asyncio.wait({failing, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            failing.cancel()
        if any(task.done() for task in tasks):
            return True
        self._following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._following
        self._channel.send("failed", why=failing.result())
        await self._end(1)
        return False

    async def _follow(self, orders: AsyncIterator[Order]) -> bool:
        """Follow the supervisor until it orders the drain. Return False if the supervisor is gone before."""
        async for order in orders:
            match order["type"]:
                case "announce":
                    listening = Listening(**order["listening"])
                    self._handover.begin(listening)
                    self._application.announce(listening)
                case "reload":
                    self._application.reload()
                    if self._certificates is not None:
                        self._certificates.reload()
                case "drain":
                    return True
        return False

    def _polled_certificates(self) -> contextlib.AbstractContextManager[None]:
        if self._certificates is None:
            return contextlib.nullcontext()
        return self._certificates.polled(self._options.tls_poll_wait_s)

    async def _use_certificates(self, tls: TlsOptions) -> None:
        await self._server.renew(tls)
        # A later process begins with them.
        self._channel.send("certificates", tls=dataclasses.asdict(tls))


async def _never() -> str:
    never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    return await never


async def stop_in_time(application: Application) -> bool:
    """Stop the application and return whether it stopped in time. If not, end the process with `end_process`.

    Raises the errors of the application's `stop`.
    """
    stopping = asyncio.ensure_future(application.stop())
    await asyncio.wait({stopping}, timeout=STOP_TIMEOUT_S)
    if stopping.done():
        stopping.result()
        return True
    _log.error(
        "The application did not stop within %g s. The process ends without it. Threads still running: %s",
        STOP_TIMEOUT_S,
        ", ".join(_running_threads()) or "none",
    )
    return False


def end_process(code: int) -> NoReturn:
    """End the process at once: threads that load or run a model would block an orderly exit."""
    sys.stdout.flush()
    logging.shutdown()
    os._exit(code)


def _running_threads() -> list[str]:
    """Return the names of this process's threads, except those of the event loop and the log, and the main thread."""
    own_threads = {threading.current_thread(), threading.main_thread()}
    others = [thread.name for thread in threading.enumerate() if thread not in own_threads]
    return [name for name in others if name != WRITER_NAME]
