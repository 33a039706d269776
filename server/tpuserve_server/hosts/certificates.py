"""Certificates: new connections use those that SIGHUP, or a look at their file, has read last."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext

from tpuserve_server.core.certificate_status import CertificateStatus
from tpuserve_server.hosts.certificate_poll import CertificatePoll
from tpuserve_server.hosts.certificate_replacement import check_replacement
from tpuserve_server.hosts.certificate_validity import certificate_status
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.tls import TlsOptions

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

    def polled(self, wait_s: float) -> AbstractContextManager[None]:
        """Return a block during which the certificates are reloaded when their file changes."""
        if self._read is None:
            return nullcontext()
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
