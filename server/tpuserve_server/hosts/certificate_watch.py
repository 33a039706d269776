"""CertificateWatch: keeps the status of the certificates, and warns in the log before they expire, at most daily."""

import asyncio
import logging
import time
from collections.abc import Callable

from tpuserve_server.core.certificate_status import CertificateStatus
from tpuserve_server.hosts.certificate_validity import expiry_warnings, next_look_s

_log = logging.getLogger(__name__)


class CertificateWatch:
    """Watches the certificates in use. The event loop of the host calls `show` and `stop`; any thread calls `find`."""

    def __init__(self, unix_s: Callable[[], float] = time.time) -> None:
        """Know no certificate. `unix_s` is the time of day, by which certificates expire."""
        self._unix_s = unix_s
        self._status: CertificateStatus | None = None
        self._next: asyncio.TimerHandle | None = None

    def find(self) -> CertificateStatus | None:
        """Return the newest status, or None without TLS."""
        return self._status

    def show(self, status: CertificateStatus) -> None:
        """Replace the status, and warn about it now and later."""
        self.stop()
        self._status, now_s = status, self._unix_s()
        for line in expiry_warnings(status, now_s):
            _log.warning("%s", line)
        self._next = asyncio.get_running_loop().call_later(next_look_s(status, now_s), self.show, status)

    def stop(self) -> None:
        """Warn no more."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
