"""Periodic reader of a server's metrics page during a load.

It keeps pages as text until the load ends, because parsing takes milliseconds that would delay requests. The process
must call give_process_to_gevent (traffic/gevent_setup.py) before it imports this module.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isfinite, isinf
from typing import Final
from urllib.parse import urlsplit

import gevent
from gevent.event import Event

from tpuserve_loadtests.access import Access
from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.server_side.page import NoPage, Page
from tpuserve_loadtests.server_side.server_side import Scrape

# The path of tpuserve's metrics page, and the usual path of TensorFlow Serving's.
PATHS: Final = ("/metrics", "/monitoring/prometheus/metrics")
# Rendering a page takes the server some milliseconds, and a chart has few pixels.
LEAST_INTERVAL_S: Final = 1.0
MOST_SCRAPES: Final = 60
MAX_PAGE_BYTES: Final = 16 * 2**20
_BLOCK_BYTES: Final = 64 * 2**10
_TIMEOUT_S: Final = 3.0
_OK: Final = 200


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
        interval_s = max(LEAST_INTERVAL_S, load.seconds / MOST_SCRAPES) if isfinite(load.seconds) else LEAST_INTERVAL_S
        at_s = 0.0 if load.warm_up_s else interval_s
        # `during` reads the last page after the last response. The first page, at the end of the warm-up, is always
        # read.
        while not at_s or at_s < load.seconds - interval_s / 2:
            if over.wait(max(zero_s + at_s - time.perf_counter(), 0)):
                return
            self._scrape(zero_s, scrapes)
            if isinf(load.seconds) and len(scrapes) >= MOST_SCRAPES:
                del scrapes[1::2]
                interval_s *= 2
            # After a slow response, skip the pages that were due meanwhile.
            at_s = max(at_s + interval_s, time.perf_counter() - zero_s)

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
        if response.status_code != _OK or len(body) > MAX_PAGE_BYTES:
            raise NoPage(f"HTTP {response.status_code}, {len(body):,} bytes")
        return body.decode(errors="replace")
