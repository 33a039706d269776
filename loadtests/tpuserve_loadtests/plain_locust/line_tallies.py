"""Results of a run under plain Locust, by line. Locust's own statistics have only two digits."""

import time
from typing import Any

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.measurement.recorder import Recorder
from tpuserve_loadtests.measurement.tally import Tally


class LineTallies:
    """Tallies of one process, or the merged tallies of several. Belongs to one thread."""

    def __init__(self) -> None:
        self.tallies: dict[str, Tally] = {}
        self._started_at = time.time()
        self._start_s, self._cpu_start_s = time.perf_counter(), time.process_time()
        self._end_s, self._cpu_end_s = 0.0, 0.0
        self._cpu_s_of_workers: dict[str, float] = {}

    def record(self, line: str, latency_s: float, failed: bool) -> None:
        """Count a request."""
        tally = self.tallies.get(line)
        if tally is None:
            tally = self.tallies[line] = Tally()
        if failed:
            tally.record_failure()
        else:
            tally.record_success(latency_s * 1e6)

    def end(self) -> None:
        """Mark the end of the run. Later requests do not extend its time."""
        if not self._end_s:
            self._end_s, self._cpu_end_s = time.perf_counter(), time.process_time()

    def take_wire(self) -> dict[str, Any]:
        """Return a document for the coordinator's `add_wire` with all records since the previous call."""
        tallies, self.tallies = self.tallies, {}
        cpu_s = (self._cpu_end_s or time.process_time()) - self._cpu_start_s
        return {"tallies": {name: tally.to_wire() for name, tally in tallies.items()}, "cpu_s": cpu_s}

    def add_wire(self, worker: str, document: dict[str, Any]) -> None:
        """Merge a worker's report."""
        self._cpu_s_of_workers[worker] = document["cpu_s"]
        for name, sent in document["tallies"].items():
            self.tallies.setdefault(name, Tally()).add(Tally.from_wire(sent))

    def measured(self, lines: tuple[str, ...], users: int) -> Measured:
        """Return the run as a single window, because only its totals are known."""
        self.end()
        span_s = max(self._end_s - self._start_s, 1e-3)
        load = Load(span_s, users=max(users, 1))
        recorder = Recorder(lines, load)
        recorder.windows[0].tallies.update(self.tallies)
        recorder.windows[0].completed.update(
            {name: tally.requests - tally.failures for name, tally in self.tallies.items()}
        )
        cpu_s = tuple(self._cpu_s_of_workers.values()) or (self._cpu_end_s - self._cpu_start_s,)
        return Measured(load, recorder, span_s, tuple(each / span_s for each in cpu_s), "", self._started_at)
