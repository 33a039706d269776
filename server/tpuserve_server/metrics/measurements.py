"""What the server has measured so far, in a form that both families of metrics are read from: ours and upstream's.

Nothing here knows how a page of metrics looks.
"""

import itertools
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tpuserve_server.core.cost_model import CostModel, CurveSnapshot
from tpuserve_server.core.errors import Code
from tpuserve_server.core.priority import Priority
from tpuserve_server.core.types import ServableId, State
from tpuserve_server.metrics.batch_measurements import BatchKey, BatchMeasurements, FinishedBatch
from tpuserve_server.metrics.bounds import BOTH_LATENCY_BOUNDS_S, UPSTREAM_EXAMPLE_BOUNDS
from tpuserve_server.metrics.device_measurements import DeviceMeasurements
from tpuserve_server.metrics.histogram import Histogram
from tpuserve_server.metrics.series import Series

# Models that went show the state of their last version; those of names that never come again would pile up.
_MAX_ENDED = 1000


class RequestKey(NamedTuple):
    """What requests are told apart by. `version` and `signature` are None and empty where none was found or needed."""

    model: str
    version: int | None
    signature: str
    method: str
    protocol: str
    code: Code


class Warmup(NamedTuple):
    """A version's warm-up: where the version lies here, how many recorded requests it has, how long all took."""

    path: Path
    records: int
    duration_s: float


# A request's key as a plain tuple: made in a third of the time.
_Request: TypeAlias = tuple[str, int | None, str, str, str, Code]


class Measurements:
    """Counts and times: core.metrics.Metrics. Safe from any thread; never blocks for long. `_lock` guards the counters.

    What belongs to a version goes with it: a server that lives for a thousand roll-outs shows what it serves.
    TensorFlow Serving's metrics are by model and may not fall, so a version's share of them is kept when it ends.
    """

    def __init__(self) -> None:
        """Nothing measured yet."""
        self._lock = threading.Lock()
        self._dropped: Counter[tuple[ServableId, str, Priority]] = Counter()
        self._unwarmed: Counter[tuple[ServableId, str]] = Counter()
        self._costs: dict[ServableId, CostModel] = {}
        self._host_s: dict[BatchKey, float] = {}
        self._logged: Counter[tuple[str, str]] = Counter()
        self._states: dict[ServableId, State] = {}
        self._warmups: dict[ServableId, Warmup] = {}
        self._requests = Series[_Request](BOTH_LATENCY_BOUNDS_S)
        self._ended_requests = Series[_Request](BOTH_LATENCY_BOUNDS_S)
        self.examples = Series[str](UPSTREAM_EXAMPLE_BOUNDS)
        self._batches = BatchMeasurements()
        self.devices = DeviceMeasurements()

    # Told by the parts that measure.

    def request_finished(
        self,
        *,
        model: str,
        version: int | None,
        signature: str,
        method: str,
        protocol: str,
        code: Code,
        latency_s: float,
    ) -> None:
        """A front-end answered."""
        self._requests[model, version, signature, method, protocol, code].add(latency_s)

    def examples_received(self, *, model: str, count: int) -> None:
        """A request carried tf.Examples."""
        self.examples[model].add(count)

    def batch_finished(
        self,
        *,
        servable: ServableId,
        signature: str,
        api: str,
        task_rows: Sequence[int],
        bucket: int,
        queue_waits_s: Sequence[float],
        run_s: float,
        expected_s: float = 0.0,
        has_buckets: bool = True,
    ) -> None:
        """A batch ran."""
        self._batches.note(
            FinishedBatch(servable, signature, api, task_rows, bucket, queue_waits_s, run_s, expected_s, has_buckets)
        )

    def finish_predicted(
        self, *, servable: ServableId, signature: str, errors_s: Sequence[float], host_s: float
    ) -> None:
        """Requests whose finish had been predicted were answered."""
        with self._lock:
            self._host_s[BatchKey(servable, signature)] = host_s
        self._batches.finish_error[BatchKey(servable, signature)].add_all(errors_s)

    def shape_first_run(self, *, servable: ServableId, signature: str) -> None:
        """A shape ran that warm-up had not run."""
        with self._lock:
            self._unwarmed[servable, signature] += 1

    def version_loaded(self, *, servable: ServableId, costs: CostModel) -> None:
        """A version is about to serve."""
        with self._lock:
            self._costs[servable] = costs

    def task_dropped(self, *, servable: ServableId, reason: str, priority: Priority = Priority.HIGH) -> None:
        """A queued request left before it ran."""
        with self._lock:
            self._dropped[servable, reason, priority] += 1

    def request_logged(self, *, model: str, outcome: str) -> None:
        """An entry of the request log was `written`, or dropped: `queue_full`, `write_failed`."""
        with self._lock:
            self._logged[model, outcome] += 1

    def version_changed(self, *, servable: ServableId, state: State) -> None:
        """A version entered `state`; at its end its series end too, but for one that says so."""
        with self._lock:
            # At the end: those that have ended are in the order in which they did.
            self._states.pop(servable, None)
            self._states[servable] = state
            if state is not State.END:
                return
            older = {id_ for id_ in self._ended() if id_.name == servable.name and id_ != servable}
            older.update(self._ended()[:-_MAX_ENDED])
            gone = {servable, *older}
            for id_ in older:
                del self._states[id_]
            for key in [key for key in self._dropped if key[0] in gone]:
                del self._dropped[key]
            for kept in [kept for kept in self._host_s if kept.servable in gone]:
                del self._host_s[kept]
            for unwarmed in [key for key in self._unwarmed if key[0] in gone]:
                del self._unwarmed[unwarmed]
            for id_ in gone:
                self._warmups.pop(id_, None)
                self._costs.pop(id_, None)
        self._forget(gone)

    def version_warmed(self, *, servable: ServableId, path: Path, records: int, duration_s: float) -> None:
        """A version was warmed up."""
        with self._lock:
            self._warmups[servable] = Warmup(path, records, duration_s)

    # Asked by pages.

    @property
    def batches(self) -> BatchMeasurements:
        """What was measured of batches, up to now."""
        self._batches.count()
        return self._batches

    def requests(self) -> Iterator[tuple[RequestKey, Histogram]]:
        """Latencies in seconds of what the versions that are there have answered, and what none was asked for."""
        return ((RequestKey(*key), histogram) for key, histogram in self._requests.items())

    def all_requests(self) -> Iterator[tuple[RequestKey, Histogram]]:
        """`requests`, and what versions that have ended had answered; a key may come twice."""
        ended = ((RequestKey(*key), histogram) for key, histogram in self._ended_requests.items())
        return itertools.chain(self.requests(), ended)

    def dropped(self) -> dict[tuple[ServableId, str, Priority], int]:
        """Requests that left the queue before they ran, by version, reason and priority."""
        with self._lock:
            return dict(self._dropped)

    def unwarmed(self) -> dict[tuple[ServableId, str], int]:
        """First runs of shapes that warm-up had not run, by version and signature."""
        with self._lock:
            return dict(self._unwarmed)

    def costs(self) -> dict[ServableId, tuple[CurveSnapshot, ...]]:
        """What each version that is there has learned of its runs."""
        with self._lock:
            models = dict(self._costs)
        return {servable: costs.snapshot() for servable, costs in models.items()}

    def kept_for_host(self) -> dict[BatchKey, float]:
        """Seconds of latency objectives that are kept for what happens outside the batcher."""
        with self._lock:
            return dict(self._host_s)

    def warmups(self) -> dict[ServableId, Warmup]:
        """The warm-up of every version that is there and had one."""
        with self._lock:
            return dict(self._warmups)

    def logged(self) -> dict[tuple[str, str], int]:
        """Entries of the request log by model and outcome."""
        with self._lock:
            return dict(self._logged)

    def states(self) -> dict[ServableId, State]:
        """Every version's state; of those that have ended only each model's last, and of few models."""
        with self._lock:
            return dict(self._states)

    def _ended(self) -> list[ServableId]:
        return [servable for servable, state in self._states.items() if state is State.END]

    def _forget(self, gone: Collection[ServableId]) -> None:
        self._batches.forget(gone)
        self.devices.forget(gone)
        names = {(servable.name, servable.version) for servable in gone}
        for (model, _, _, method, protocol, code), histogram in self._requests.take(lambda key: key[:2] in names):
            self._ended_requests[model, None, "", method, protocol, code].absorb(histogram)
