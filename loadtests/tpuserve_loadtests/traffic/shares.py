"""A load that several workers share, while it runs: what each says of it, merged when it is over."""

import time
from collections.abc import Sequence
from typing import Any

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.measurement.measured import Measured
from tpuserve_loadtests.measurement.recorder import Counts, Recorder


class Shares:
    """`workers`: their names, in the order of their shares."""

    def __init__(self, load: Load, lines: Sequence[str], workers: Sequence[str]) -> None:
        self._load = load
        self._lines = lines
        self._start_s = time.perf_counter()
        self._counts = dict.fromkeys(workers, Counts())
        self._reports: dict[str, dict[str, Any]] = {}  # as Worker sends them

    @property
    def elapsed_s(self) -> float:
        """Seconds since workers were told."""
        return time.perf_counter() - self._start_s

    @property
    def counts(self) -> Counts:
        """What all of them counted so far."""
        return sum(self._counts.values(), Counts())

    @property
    def missing(self) -> frozenset[str]:
        """Workers that have not reported."""
        return frozenset(self._counts.keys() - self._reports.keys())

    def take(self, worker: str, kind: str, data: Any) -> None:  # noqa: ANN401  what msgpack makes
        """A message of a worker; one that is of something else changes nothing."""
        if kind == "measured":
            self._reports[worker] = data
        elif kind == "counts":
            self._counts[worker] = Counts(data[0], data[1], tuple(data[2]), data[3])

    def measured(self, stopped: str, started_at: float, lost: tuple[str, ...]) -> Measured:
        """All reports together. Who did not report used no core, as far as is known."""
        recorder = Recorder(self._lines, self._load)
        for report in self._reports.values():
            recorder.add_wire(report["recorder"])
        span_s = max((report["span_s"] for report in self._reports.values()), default=0.0)
        cores = tuple(self._reports[name]["cores"] if name in self._reports else 0.0 for name in self._counts)
        return Measured(self._load, recorder, span_s, cores, stopped, started_at, lost)
