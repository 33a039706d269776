"""Watcher of a server's metrics, processes and energy during loads.

It never fails a run: missing metrics become a note.

The process must call give_process_to_gevent (traffic/gevent_setup.py) before it imports this module.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

from tpuserve_loadtests.access import Access
from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.server_side.dialect import Served, memory_bytes
from tpuserve_loadtests.server_side.energy_watch import EnergyWatch
from tpuserve_loadtests.server_side.page import NoPage
from tpuserve_loadtests.server_side.process_use import ProcessTree, read_use
from tpuserve_loadtests.server_side.process_watch import ProcessWatch
from tpuserve_loadtests.server_side.scraper import Scraper
from tpuserve_loadtests.server_side.server_side import Scrape, Seen, read_stretch


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
        self._processes = None if processes is None else ProcessWatch(processes)
        self._scraper: Scraper | None = None
        self._why_not = why_not
        if url:
            try:
                self._scraper = Scraper(url, access or Access())
            except NoPage as error:
                self._why_not = f"no server metrics: {url} has no metrics page ({error})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._scraper is not None:
            self._scraper.close()

    @contextmanager
    def during(self, load: Load) -> Iterator[Seen]:
        """Watch the server while the block runs the load. The yielded object is complete after the block."""
        seen = Seen(note=self._why_not)
        with ExitStack() as stack:
            metered = stack.enter_context(self._energy.during(load))
            samples = None if self._processes is None else stack.enter_context(self._processes.during(load))
            scrapes = None if self._scraper is None else stack.enter_context(self._scraper.during(load))
            yield seen
        seen.energy = metered.energy
        if self._scraper is not None and scrapes is not None:
            self._fill(seen, scrapes, self._scraper.lost)
        if self._processes is not None and samples is not None:
            seen.use = read_use(self._processes.pids, samples)
            if self._processes.has_ended:
                ended = f"the server process {', '.join(map(str, self._processes.pids))} ended during the load"
                seen.note = "; ".join(note for note in (ended, seen.note) if note)

    def memory_bytes(self) -> float | None:
        """Return the current memory of the server's processes in bytes, or None if it is unknown."""
        if self._processes is not None:
            return self._processes.memory_bytes()
        try:
            return memory_bytes(self._scraper.page()) if self._scraper is not None else None
        except NoPage:
            return None

    @property
    def why_not(self) -> str:
        """The reason why the metrics are missing; empty if they are available or not requested."""
        return self._why_not

    def _fill(self, seen: Seen, scrapes: list[Scrape], lost: str) -> None:
        try:
            seen.stretch = read_stretch(scrapes, self._served)
        except NoPage as error:
            seen.note = f"no server metrics: {error}"
            return
        if lost:
            first = f"they cover the first {scrapes[-1].at_s:.1f} s"
            seen.note = f"the server's metrics could not be read at the end ({lost}): {first}"
