"""Records of Locust's requests with HDR histograms, in one process or merged from several."""

import math
import time
from collections.abc import Iterable
from typing import Any, Final

from tpuserve_loadtests.arrivals.load import Load
from tpuserve_loadtests.golden.form import WrongAnswer
from tpuserve_loadtests.measurement.measured import INTERRUPTED, Measured
from tpuserve_loadtests.measurement.recorder import Delivery, Recorder
from tpuserve_loadtests.traffic.senders import failure_message

# Locust may end a run at any time, so the windows begin short and double in length, as for a number of requests.
_UNENDING: Final = Load(math.inf, users=1, requests=2**62)
# Between the name and the type of a request, which together identify an entry of Locust's statistics.
_BETWEEN: Final = "\0"
# Locust reads the time of a run in whole seconds, and stops a run that late or early.
_END_MARGIN_S: Final = 1.0


class Records:
    """The requests of a run by type and name. Belongs to one thread.

    `lost` names the workers whose last records are missing.
    """

    def __init__(self) -> None:
        self.lost: tuple[str, ...] = ()
        self._recorder = Recorder((), _UNENDING)
        self._started_at = time.time()
        self._start_s, self._cpu_start_s = time.perf_counter(), time.process_time()
        self._end_s, self._cpu_end_s, self._users = 0.0, 0.0, 0
        self._cpu_s_of_workers: dict[str, float] = {}

    def record(self, kind: str, name: str, latency_s: float, error: Exception | None, delivery: Delivery) -> None:
        """Count a request that has just ended. Ignore one that began before the records."""
        finished_s = time.perf_counter() - self._start_s
        message = None if error is None else failure_message(error)
        entry, due_s = f"{name}{_BETWEEN}{kind}", finished_s - latency_s
        delivery.wrong = isinstance(error, WrongAnswer)
        self._recorder.record(entry, due_s, finished_s, message, delivery)

    def end(self, users: int) -> None:
        """Mark the end of the run, with its number of users. Later responses count, but not in its time and rate."""
        if not self._end_s:
            self._users = users
            self._end_s, self._cpu_end_s = time.perf_counter(), time.process_time()
            self._recorder.end_s = self._end_s - self._start_s

    def take_wire(self) -> dict[str, Any]:
        """Return a document for the coordinator's `add_wire` with all records since the previous call."""
        taken, self._recorder = self._recorder, Recorder((), _UNENDING)
        self._recorder.end_s = taken.end_s
        cpu_s = (self._cpu_end_s or time.process_time()) - self._cpu_start_s
        return {"records": taken.to_wire(), "cpu_s": cpu_s}

    def add_wire(self, worker: str, document: dict[str, Any]) -> None:
        self._cpu_s_of_workers[worker] = document["cpu_s"]
        self._recorder.add_wire(document["records"])

    def measured(self, lines: Iterable[str], planned_s: float) -> Measured:
        """Return the run. `lines` are the first lines of the table. The others follow, in alphabetical order.

        A run that is shorter than `planned_s` was interrupted.
        """
        self.end(0)
        span_s = max(self._end_s - self._start_s, 1e-3)
        stopped = INTERRUPTED if span_s < planned_s - _END_MARGIN_S else ""
        load = Load(planned_s if stopped else span_s, users=max(self._users, 1))
        names = self._names()
        self._recorder.rename(names)
        self._recorder.lines = tuple(dict.fromkeys((*lines, *sorted(names.values()))))
        cpu_s = tuple(self._cpu_s_of_workers.values()) or (self._cpu_end_s - self._cpu_start_s,)
        cores = tuple(each / span_s for each in cpu_s)
        return Measured(load, self._recorder, span_s, cores, stopped, self._started_at, self.lost)

    def _names(self) -> dict[str, str]:
        """Name the lines after the requests, and by the type, too, if requests of several types share a name."""
        entries = {entry: entry.split(_BETWEEN) for entry in self._recorder.entries()}
        names = [name for name, _ in entries.values()]
        return {entry: name if names.count(name) == 1 else f"{name} {kind}" for entry, (name, kind) in entries.items()}
