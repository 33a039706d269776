"""CertificatePoll: notices that the file of the certificates has changed, such as after a renewal in Kubernetes."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.tls import TlsOptions


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
