"""Watcher of a server's metrics, processes and energy during loads.

It never fails a run: missing metrics become a note.

The process must call give_process_to_gevent (traffic/gevent_setup.py) before it imports this module.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final, Self, TypeVar
from urllib.parse import urlsplit

import gevent
from gevent.event import Event

from tpuserve_loadtests.access import Access
from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.monitoring.energy import EnergyWatch
from tpuserve_loadtests.monitoring.metrics_page import NoPage, Page, Served, memory_bytes, read_figures
from tpuserve_loadtests.monitoring.process_use import ProcessTree, read_use
from tpuserve_loadtests.monitoring.server_side import Scrape, Seen, read_stretch

# Rendering a page takes the server some milliseconds, and a chart has few pixels.
LEAST_INTERVAL_S: Final = 1.0
MOST_READINGS: Final = 60

_Reading = TypeVar("_Reading")


def reading_times(zero_s: float, load: Load, over: Event, readings: list[_Reading]) -> Iterator[None]:
    """Yield at each time to read, until shortly before the end of the load, or until `over`.

    The caller reads the end of the load itself. The measured time starts at `zero_s`. A load without a duration doubles
    the interval after every MOST_READINGS `readings`, and drops every second reading.
    """
    is_timed = math.isfinite(load.seconds)
    interval_s = max(LEAST_INTERVAL_S, load.seconds / MOST_READINGS) if is_timed else LEAST_INTERVAL_S
    at_s = 0.0 if load.warm_up_s else interval_s
    # The end of the warm-up is always read.
    while not at_s or at_s < load.seconds - interval_s / 2:
        if over.wait(max(zero_s + at_s - time.perf_counter(), 0)):
            return
        yield
        if not is_timed and len(readings) >= MOST_READINGS:
            del readings[1::2]
            interval_s *= 2
        # After a slow reading, skip the times that passed meanwhile.
        at_s = max(at_s + interval_s, time.perf_counter() - zero_s)


@contextmanager
def read_during(load: Load, read: Callable[[float, list[_Reading]], None]) -> Iterator[list[_Reading]]:
    """Call `read` while the block runs the load: at the warm-up's end, periodically, and at the block's end.

    `read` adds to the yielded list, which is complete after the block. Its time counts from the start of the measured
    time, and precedes the reading, because counters reflect the time of a request for them.
    """
    readings: list[_Reading] = []
    zero_s = time.perf_counter() + load.warm_up_s

    def keep_reading() -> None:
        for _ in reading_times(zero_s, load, over, readings):
            read(time.perf_counter() - zero_s, readings)

    if not load.warm_up_s:
        read(time.perf_counter() - zero_s, readings)
    over = Event()
    greenlet = gevent.spawn(keep_reading)
    try:
        yield readings
    finally:
        over.set()
        greenlet.join()
        read(time.perf_counter() - zero_s, readings)


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

    def scrape(self, at_s: float, scrapes: list[Scrape]) -> None:
        """Add a page, as text until the load ends, because parsing takes milliseconds that would delay requests."""
        try:
            scrapes.append(Scrape(at_s, self._read(self._path)))
            self.lost = ""
        except NoPage as error:
            self.lost = str(error)

    def page(self) -> Page:
        """Return the current page. Raises NoPage."""
        return Page.parse(self._read(self._path))

    def close(self) -> None:
        self._client.close()

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


class ServerWatch:
    """Watcher for use in a `with` statement around any number of runs."""

    def __init__(
        self,
        url: str,
        served: Served,
        why_not: str = "",
        access: Access | None = None,
        processes: ProcessTree | None = None,
        energy: EnergyWatch | None = None,
    ) -> None:
        """Find the metrics page under `url`. Without a URL, watch no page, and use `why_not` as the runs' note."""
        self._served = served
        self._energy = energy or EnergyWatch(None)
        self._processes = processes
        self._scraper: Scraper | None = None
        self.why_not = why_not
        if url:
            try:
                self._scraper = Scraper(url, access or Access())
            except NoPage as error:
                self.why_not = f"no server metrics: {url} has no metrics page ({error})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._scraper is not None:
            self._scraper.close()

    @contextmanager
    def during(self, load: Load) -> Iterator[Seen]:
        """Watch the server while the block runs the load. The yielded object is complete after the block."""
        seen = Seen(note=self.why_not)
        with ExitStack() as stack:
            metered = stack.enter_context(self._energy.during(load))
            if self._processes is not None:
                samples = stack.enter_context(read_during(load, self._processes.add_sample))
            if self._scraper is not None:
                scrapes = stack.enter_context(read_during(load, self._scraper.scrape))
            yield seen
        seen.energy = metered.energy
        if self._scraper is not None:
            self._fill(seen, scrapes, self._scraper.lost)
        if self._processes is not None:
            seen.use = read_use(self._processes.pids, samples)
            if self._processes.has_ended:
                ended = f"the server process {', '.join(map(str, self._processes.pids))} ended during the load"
                seen.note = "; ".join(note for note in (ended, seen.note) if note)

    def rate_per_s(self, seconds: float) -> float | None:
        """Return the rate of the requests that the server answers in the next `seconds`, or None if it is unknown."""
        if self._scraper is None:
            return None
        began_s = time.perf_counter()
        try:
            before = self._scraper.page()
            gevent.sleep(seconds)
            counted = self._scraper.page().since(before)
        except NoPage:
            return None
        return sum(read_figures(counted, self._served).answers.values()) / (time.perf_counter() - began_s)

    def memory_bytes(self) -> float | None:
        """Return the current memory of the server's processes in bytes, or None if it is unknown."""
        if self._processes is not None:
            sample = self._processes.read(0.0)
            return None if sample is None else sample.memory_bytes
        try:
            return memory_bytes(self._scraper.page()) if self._scraper is not None else None
        except NoPage:
            return None

    def _fill(self, seen: Seen, scrapes: list[Scrape], lost: str) -> None:
        try:
            seen.stretch = read_stretch(scrapes, self._served)
        except NoPage as error:
            seen.note = f"no server metrics: {error}"
            return
        if lost:
            first = f"they cover the first {scrapes[-1].at_s:.1f} s"
            seen.note = f"the server's metrics could not be read at the end ({lost}): {first}"
