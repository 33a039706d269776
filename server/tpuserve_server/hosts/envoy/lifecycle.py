"""Lifecycle: the start, the orders and the end of an application in a process of the supervisor."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Generic, Self, TypeVar

from tpuserve_server.core.certificate_status import CertificateStatus
from tpuserve_server.hosts.application import Application, Listening
from tpuserve_server.hosts.ending import end_process, stop_in_time
from tpuserve_server.hosts.envoy.channel import Channel, ChildSetup
from tpuserve_server.hosts.errors import HostError

_log = logging.getLogger(__name__)

# Exit code after the loss of the supervisor, which is the only process that reads it.
ORPHANED = 1

_App = TypeVar("_App", bound=Application)


class Leaving(Enum):
    """Why a process should drain: an order, the end of the supervisor, or damage that needs another process."""

    ORDERED = auto()
    ORPHANED = auto()
    REPLACED = auto()


class Lifecycle(Generic[_App]):
    """One application under the orders of the supervisor. One event loop's thread owns it."""

    def __init__(
        self,
        application: _App,
        channel: Channel,
        setup: ChildSetup,
        on_announce: Callable[[Listening], None] | None = None,
    ) -> None:
        """Follow the orders from now on. `on_announce` is called before the application learns its addresses."""
        self.application = application
        self._channel = channel
        self._setup = setup
        self._on_announce = on_announce
        # True: the supervisor ordered the drain. False: it is gone.
        self._following = asyncio.create_task(self._follow())

    @classmethod
    async def start(
        cls,
        factory: Callable[[], _App],
        channel: Channel,
        setup: ChildSetup,
        on_announce: Callable[[Listening], None] | None = None,
    ) -> Self | None:
        """Build and start the application. If that fails, report the reason, end the process, and return None.

        Only tests of a process that does not end see the None.
        """
        try:
            application = factory()
            await application.start()
        except Exception as error:  # Report every error: the supervisor must learn that the application cannot serve.
            await _fail(error, channel)
            return None
        return cls(application, channel, setup, on_announce)

    async def open(self) -> bool:
        """Wait until the addresses may open, and return True.

        End the process instead if the supervisor orders a drain or is gone, or if the application has failed.
        """
        if not self._setup.options.opens_when_ready:
            return True
        self._channel.send("loading")
        becoming = asyncio.create_task(self.application.ready())
        try:
            if not await self._one_ends(self._following, becoming):
                return False
        finally:
            becoming.cancel()
        if self._following.done():
            await self.end(0 if self._following.result() else ORPHANED)
        return not self._following.done()

    def report_ready(self, rest: str | None = None) -> None:
        """Report that the addresses open now. `rest` is that of a REST server in this process."""
        self._channel.send("ready", **({} if rest is None else {"rest": rest}))

    async def fail(self, error: HostError) -> None:
        """Report why the addresses cannot open, and end the process."""
        await _fail(error, self._channel)

    async def leaving(self) -> Leaving | None:
        """Wait until the process should drain, report a replacement to the supervisor, and return the reason.

        If the application can no longer begin to serve, end the process at once: there is nothing to drain.
        """
        replacing = asyncio.create_task(self.application.replacement())
        try:
            if not await self._one_ends(self._following, replacing):
                return None
            if self._following.done() and self._following.result():
                return Leaving.ORDERED
            if self._following.done():
                _log.error("The supervisor has ended. The server drains and stops")
                return Leaving.ORPHANED
            replacement = replacing.result()
            self._channel.send("replace", damage=replacement.damage, why=replacement.why)
            return Leaving.REPLACED
        finally:
            replacing.cancel()

    async def end(self, code: int) -> None:
        """Stop the application and end the process."""
        try:
            await stop_in_time(self.application)
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
        failing = asyncio.create_task(_never() if self._setup.is_respawn else self.application.failure())
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
        await self.end(1)
        return False

    async def _follow(self) -> bool:
        """Follow the supervisor until it orders the drain. Return False if the supervisor is gone before."""
        async for order in self._channel.messages():
            match order["type"]:
                case "announce":
                    listening = Listening(**order["listening"])
                    if self._on_announce is not None:
                        self._on_announce(listening)
                    self.application.announce(listening)
                case "certificates":
                    self.application.show_certificates(CertificateStatus(**order["status"]))
                case "reload":
                    self.application.reload()
                case "drain":
                    return True
        return False


async def _fail(error: Exception, channel: Channel) -> None:
    """Report the error and end the process. A failed startup would make Envoy log another error before the reason."""
    if not isinstance(error, HostError):
        _log.error("The application could not start", exc_info=error)
    channel.send("failed", why=str(error) or type(error).__name__)
    await channel.close()
    end_process(1)


async def _never() -> str:
    never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    return await never
