"""Reads a server's page of metrics while a load runs: now and then, and nothing more until the load is over.

Pages are kept as text, because to parse one takes some milliseconds, in which requests would be sent late. Importing
this needs a process that was handed to gevent: see traffic/gevent_setup.py.
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
from tpuserve_loadtests.server_side.server_side import Scrape

# Where tpuserve has its page, and TensorFlow Serving's usual place.
PATHS: Final = ("/metrics", "/monitoring/prometheus/metrics")
# Rendering a page takes a server some milliseconds; a timeline needs no more points than it has pixels for.
LEAST_INTERVAL_S: Final = 1.0
MOST_SCRAPES: Final = 60
MAX_PAGE_BYTES: Final = 16 * 2**20
_BLOCK_BYTES: Final = 64 * 2**10
_TIMEOUT_S: Final = 3.0
_OK: Final = 200


class Scraper:
    """Of one server. `close` gives the connection back. `lost`: why a load's last page could not be read."""

    def __init__(self, url: str, access: Access) -> None:
        """Find the page at this URL, or at the known places under an address. Raises NoPage if there is none."""
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
        """Read pages while the block runs the load: at its warm-up's end, now and then, and when the block ends.

        The list is whole when the block is over. A page that cannot be read is left out.
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
        """The page as it is now. Raises NoPage."""
        return Page.parse(self._read(self._path))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _keep_scraping(self, zero_s: float, load: Load, scrapes: list[Scrape], over: Event) -> None:
        interval_s = max(LEAST_INTERVAL_S, load.seconds / MOST_SCRAPES)
        at_s = 0.0 if load.warm_up_s else interval_s
        # The last page is read when all answers are here, and that of the warm-up's end whatever is left.
        while not at_s or at_s < load.seconds - interval_s / 2:
            if over.wait(max(zero_s + at_s - time.perf_counter(), 0)):
                return
            self._scrape(zero_s, scrapes)
            # A server that kept the page waiting is not asked for those that were due meanwhile.
            at_s = max(at_s + interval_s, time.perf_counter() - zero_s)

    def _scrape(self, zero_s: float, scrapes: list[Scrape]) -> str:
        """Add a page, or tell why there is none: the server is busy, or gone."""
        # What a server counts is of the moment in which it is asked.
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
            with gevent.Timeout(_TIMEOUT_S, TimeoutError(f"no answer within {_TIMEOUT_S:g} s")):
                response = self._client.get(path)
                while len(body) <= MAX_PAGE_BYTES and (block := response.read(_BLOCK_BYTES)):
                    body += block
                response.release()
        except Exception as error:  # whatever the connection or its parser raise: there is no page
            raise NoPage(str(error) or type(error).__name__) from None
        if response.status_code != _OK or len(body) > MAX_PAGE_BYTES:
            raise NoPage(f"HTTP {response.status_code}, {len(body):,} bytes")
        return body.decode(errors="replace")
