"""Periodic reader of a server's metrics page during a load.

It keeps pages as text until the load ends, because parsing takes milliseconds that would delay requests. The process
must call give_process_to_gevent (traffic/gevent_setup.py) before it imports this module.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

import gevent
from gevent.event import Event

from tpuserve_loadtests.access import Access
from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.server_side.page import NoPage, Page
from tpuserve_loadtests.server_side.reading_times import reading_times
from tpuserve_loadtests.server_side.server_side import Scrape

# The path of tpuserve's metrics page, and the usual path of TensorFlow Serving's.
PATHS: Final = ("/metrics", "/monitoring/prometheus/metrics")
MAX_PAGE_BYTES: Final = 16 * 2**20
_BLOCK_BYTES: Final = 64 * 2**10
_TIMEOUT_S: Final = 3.0
_OK: Final = 200
_REFUSALS: Final = (401, 403)


class Scraper:
    """Reader of one server's page. `close` releases the connection.

    `lost` is the reason why the last page of a load could not be read.
    """

    def __init__(self, url: str, access: Access) -> None:
        """Find the page at this URL, or at the known paths of an address. Raises NoPage if there is none."""
        self.lost = ""
        parts = urlsplit(url)
        self._client = access.http_client(f"{parts.scheme}://{parts.netloc}", 1, _TIMEOUT_S)
        own = parts.path.rstrip("/")
        try:
            self._path = self._find([own] if own else PATHS)
        except NoPage:
            self.close()
            raise

    @contextmanager
    def during(self, load: Load) -> Iterator[list[Scrape]]:
        """Read pages while the block runs the load: at the warm-up's end, periodically, and at the block's end.

        The list is complete after the block. It omits pages that could not be read.
        """
        scrapes: list[Scrape] = []
        zero_s = time.perf_counter() + load.warm_up_s
        if not load.warm_up_s:
            self._scrape(zero_s, scrapes)
        over = Event()
        greenlet = gevent.spawn(self._keep_scraping, zero_s, load, scrapes, over)
        try:
            yield scrapes
        finally:
            over.set()
            greenlet.join()
            self.lost = self._scrape(zero_s, scrapes)

    def page(self) -> Page:
        """Return the current page. Raises NoPage."""
        return Page.parse(self._read(self._path))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _keep_scraping(self, zero_s: float, load: Load, scrapes: list[Scrape], over: Event) -> None:
        for _ in reading_times(zero_s, load, over, scrapes):
            self._scrape(zero_s, scrapes)

    def _scrape(self, zero_s: float, scrapes: list[Scrape]) -> str:
        """Add a page, or return the reason why the server did not send one."""
        # Counters reflect the time of the request for the page.
        at_s = time.perf_counter() - zero_s
        try:
            scrapes.append(Scrape(at_s, self._read(self._path)))
        except NoPage as error:
            return str(error)
        return ""

    def _find(self, paths: Sequence[str]) -> str:
        reasons = []
        for path in paths:
            try:
                Page.parse(self._read(path))
            except NoPage as error:
                reasons.append(f"{path}: {error}")
            else:
                return path
        raise NoPage("; ".join(reasons))

    def _read(self, path: str) -> str:
        body = bytearray()
        try:
            with gevent.Timeout(_TIMEOUT_S, TimeoutError(f"no response within {_TIMEOUT_S:g} s")):
                response = self._client.get(path)
                while len(body) <= MAX_PAGE_BYTES and (block := response.read(_BLOCK_BYTES)):
                    body += block
                response.release()
        except Exception as error:  # any error of the connection or its parser means that there is no page
            raise NoPage(str(error) or type(error).__name__) from None
        if response.status_code in _REFUSALS:
            raise NoPage(f"HTTP {response.status_code}: the page needs credentials with the role read for all models")
        if response.status_code != _OK or len(body) > MAX_PAGE_BYTES:
            raise NoPage(f"HTTP {response.status_code}, {len(body):,} bytes")
        return body.decode(errors="replace")
