"""A running load that several workers share, and its merged measurements."""

import time
from collections.abc import Sequence
from typing import Any

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.measurement.recorder import Counts, Recorder


class Shares:
    """The workers' shares of a load. `workers` holds their names in the order of shares."""

    def __init__(self, load: Load, lines: Sequence[str], workers: Sequence[str]) -> None:
        self._load = load
        self._lines = lines
        self._start_s = time.perf_counter()
        self._counts = dict.fromkeys(workers, Counts())
        self._reports: dict[str, dict[str, Any]] = {}  # as Worker sends them

    @property
    def elapsed_s(self) -> float:
        """Seconds since the coordinator sent the load."""
        return time.perf_counter() - self._start_s

    @property
    def counts(self) -> Counts:
        """The counts of all workers so far."""
        return sum(self._counts.values(), Counts())

    @property
    def missing(self) -> frozenset[str]:
        """Workers that have not reported."""
        return frozenset(self._counts.keys() - self._reports.keys())

    def take(self, worker: str, kind: str, data: Any) -> None:  # noqa: ANN401  what msgpack makes
        """Process a worker's message. Ignore other kinds."""
        if kind == "measured":
            self._reports[worker] = data
        elif kind == "counts":
            self._counts[worker] = Counts.from_wire(data)

    def measured(self, stopped: str, started_at: float, lost: tuple[str, ...]) -> Measured:
        """Merge all reports. Workers without a report count with zero cores."""
        recorder = Recorder(self._lines, self._load)
        for report in self._reports.values():
            recorder.add_wire(report["recorder"])
        span_s = max((report["span_s"] for report in self._reports.values()), default=0.0)
        cores = tuple(self._reports[name]["cores"] if name in self._reports else 0.0 for name in self._counts)
        return Measured(self._load.lasting(span_s), recorder, span_s, cores, stopped, started_at, lost)
