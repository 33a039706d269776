"""Certificates: new connections use those that SIGHUP, or a look at their file, has read last."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator

from tpuserve_server.core.certificate_status import CertificateStatus
from tpuserve_server.hosts.certificate_validity import certificate_status, find_invalidity
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.tls import TlsOptions, check_usable

_log = logging.getLogger(__name__)


class Certificates:
    """The certificates in use. The event loop's thread owns it."""

    def __init__(
        self,
        tls: TlsOptions,
        read: Callable[[], TlsOptions] | None,
        use: Callable[[TlsOptions], Awaitable[None]],
        show: Callable[[CertificateStatus], None],
    ) -> None:
        """Begin with `tls`, which the caller has checked and uses. `read` reads them again, and raises HostError.

        `use` uses others, and raises HostError if it cannot. `show` gets the status now and after each reload.
        """
        self._tls = tls
        self._read = read
        self._use = use
        self._show = show
        self._reloading: asyncio.Task[None] | None = None
        # Whether something has asked for a reload since the last one began.
        self._is_due = False
        show(certificate_status(tls))

    def polled(self, wait_s: float) -> contextlib.AbstractContextManager[None]:
        """Return a block during which the certificates are reloaded when their file changes."""
        if self._read is None:
            return contextlib.nullcontext()
        return CertificatePoll(self._read, wait_s, self.reload).running(self._tls)

    def reload(self) -> None:
        """Begin to read the certificates again, or do it once more after a reload that runs.

        Errors change nothing and are logged.
        """
        self._is_due = True
        if self._read is not None and (self._reloading is None or self._reloading.done()):
            self._reloading = asyncio.create_task(self._reload_while_due(self._read))

    async def _reload_while_due(self, read: Callable[[], TlsOptions]) -> None:
        while self._is_due:
            self._is_due = False
            await self._reload(read)

    async def _reload(self, read: Callable[[], TlsOptions]) -> None:
        try:
            tls = await asyncio.to_thread(check_replacement, read, self._tls)
            await self._use(tls)
        except HostError as error:
            _log.error("The server keeps its certificates: %s", error)
            self._show(certificate_status(self._tls, str(error)))
            return
        self._tls = tls
        self._show(certificate_status(tls))
        _log.info("New connections use the certificates that were read again")


def check_replacement(read: Callable[[], TlsOptions], current: TlsOptions | None) -> TlsOptions:
    """Read certificates that should replace the current ones, and check them. Blocks.

    Raises:
        HostError: they cannot be read or used, no client would accept them now, or only one of both has a `client_ca`.
    """
    tls = read()
    check_usable(tls)
    if invalidity := find_invalidity(tls):
        raise HostError(invalidity)
    if current is not None and (tls.client_ca is None) is not (current.client_ca is None):
        raise HostError(f"{tls.origin}: a reload can replace custom_ca, but not add or remove it. Restart the server.")
    return tls


class CertificatePoll:
    """Reads the certificates again and again. All methods run on the event loop of the host."""

    def __init__(self, read: Callable[[], TlsOptions], wait_s: float, changed: Callable[[], None]) -> None:
        """Call `changed` when `read` returns something else than before, or raises another HostError.

        `read` runs in a thread. `wait_s` is the time between two reads; 0: never.
        """
        self._read = read
        self._wait_s = wait_s
        self._changed = changed

    @contextlib.contextmanager
    def running(self, current: TlsOptions) -> Iterator[None]:
        """Poll during the block. The server uses `current`."""
        polling = asyncio.create_task(self._poll(current)) if self._wait_s > 0 else None
        try:
            yield
        finally:
            if polling is not None:
                polling.cancel()

    async def _poll(self, current: TlsOptions) -> None:
        seen: TlsOptions | str = current
        while True:
            await asyncio.sleep(self._wait_s)
            found = await asyncio.to_thread(self._look)
            if found != seen:
                seen = found
                self._changed()

    def _look(self) -> TlsOptions | str:
        try:
            return self._read()
        except HostError as error:
            return str(error)
