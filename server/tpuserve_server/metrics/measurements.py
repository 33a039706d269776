"""Measurements of the server, in one form for both families of metrics: this server's and upstream's.

Other modules format the metrics page.
"""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tpuserve_server.core.cost_model import CostModel, CurveSnapshot
from tpuserve_server.core.errors import Code
from tpuserve_server.core.priority import Priority
from tpuserve_server.core.response_cache import CacheCounts, VersionResponses
from tpuserve_server.core.types import ServableId, State
from tpuserve_server.metrics.batch_measurements import BatchKey, BatchMeasurements, FinishedBatch
from tpuserve_server.metrics.bounds import BOTH_LATENCY_BOUNDS_S, LATENCY_BOUNDS_S, UPSTREAM_EXAMPLE_BOUNDS
from tpuserve_server.metrics.counts import Counts
from tpuserve_server.metrics.device_measurements import DeviceMeasurements
from tpuserve_server.metrics.exemplars import Exemplars, TracedRequest
from tpuserve_server.metrics.histogram import Histogram
from tpuserve_server.metrics.limit import OTHER, OTHER_SERVABLE, OTHER_VERSION
from tpuserve_server.metrics.series import Series
from tpuserve_server.metrics.server_measurements import ServerMeasurements

# A removed model shows the state of its last version. The limit keeps unused names from accumulating.
_MAX_ENDED = 1000


class RequestKey(NamedTuple):
    """Key of a series of requests. `version` is None and `signature` is empty if none was found or needed."""

    model: str
    version: int | None
    signature: str
    method: str
    protocol: str
    code: Code


class Warmup(NamedTuple):
    """Warm-up of a version: its local path, its number of recorded requests, and the duration of the warm-up."""

    path: Path
    records: int
    duration_s: float


# A request's key as a plain tuple, which takes a third of the time to create.
_Request: TypeAlias = tuple[str, int | None, str, str, str, Code]


def _other_request(key: _Request) -> _Request:
    return (OTHER, OTHER_VERSION, OTHER, *key[3:])


def _other_ended(key: _Request) -> _Request:
    return (OTHER, *key[1:])


class Measurements:
    """Implementation of core.metrics.Metrics. Thread-safe: never blocks for long, and `_lock` guards the counters.

    A version's series end with the version. After a thousand roll-outs, a server shows only the versions that it
    serves. TensorFlow Serving's metrics are by model and must not fall, so they keep the counts of ended versions.
    """

    def __init__(self) -> None:
        """Start with no measurements."""
        self._lock = threading.Lock()
        self._refused = Counts[str](lambda _: OTHER)
        self._dropped = Counts[tuple[ServableId, str, Priority]](lambda key: (OTHER_SERVABLE, *key[1:]))
        self._unwarmed = Counts[BatchKey](lambda _: BatchKey(OTHER_SERVABLE, OTHER))
        self._hung = Counts[ServableId](lambda _: OTHER_SERVABLE)
        self._loads = Counts[tuple[str, str]](lambda key: (OTHER, key[1]))
        self._load_s: dict[ServableId, float] = {}
        self._stages_s = Counts[tuple[str, str, str]](lambda key: (key[0], OTHER, key[2]))
        self._stage_requests = Counts[tuple[str, str]](lambda key: (key[0], OTHER))
        self._costs: dict[ServableId, CostModel] = {}
        self._caches: dict[ServableId, VersionResponses] = {}
        self._host_s: dict[BatchKey, float] = {}
        self._logged = Counts[tuple[str, str]](lambda key: (OTHER, key[1]))
        self._traced: Counter[str] = Counter()
        self._states: dict[ServableId, State] = {}
        self._warmups: dict[ServableId, Warmup] = {}
        self._requests = Series[_Request](BOTH_LATENCY_BOUNDS_S, _other_request)
        self._ended_requests = Series[_Request](BOTH_LATENCY_BOUNDS_S, _other_ended)
        self._exemplars = Exemplars[_Request](LATENCY_BOUNDS_S)
        self.examples = Series[str](UPSTREAM_EXAMPLE_BOUNDS, lambda _: OTHER)
        self._batches = BatchMeasurements()
        self.devices = DeviceMeasurements()
        self.server = ServerMeasurements()

    # Called by the parts that measure.

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
        trace_id: str = "",
    ) -> None:
        """Record the response of a front-end."""
        key = (model, version, signature, method, protocol, code)
        (self._requests.find(key) or self._requests[key]).add(latency_s)
        if trace_id:
            self._exemplars.add(self._requests.counted_as(key), TracedRequest(trace_id, latency_s, time.time()))

    def answers_of(
        self, *, model: str, version: int, signature: str, method: str, protocol: str
    ) -> Callable[[float, str], None]:
        """Return a function that records the latency and the trace of a response, without a search for its series."""
        key = (model, version, signature, method, protocol, Code.OK)
        add: Callable[[float], None] | None = None

        def record(latency_s: float, trace_id: str) -> None:
            nonlocal add
            if add is None:
                add = self._requests[key].add
            add(latency_s)
            if trace_id:
                self._exemplars.add(self._requests.counted_as(key), TracedRequest(trace_id, latency_s, time.time()))

        return record

    def protocol_served(self, *, protocol: str, in_flight: Callable[[], int]) -> None:
        """Record a front-end of a protocol."""
        self.server.protocol_served(protocol=protocol, in_flight=in_flight)

    def stages_sampled(self, *, protocol: str, model: str, stages: Iterable[tuple[str, float]], requests: int) -> None:
        """Record the stages of one request for several."""
        self._stage_requests.add((protocol, model), requests)
        for stage, duration_s in stages:
            self._stages_s.add((protocol, model, stage), duration_s * requests)

    def examples_received(self, *, model: str, count: int) -> None:
        """Record the number of tf.Examples in a request."""
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
        """Record a batch that ran."""
        self._batches.note(
            FinishedBatch(
                servable, signature, api, task_rows, bucket, queue_waits_s, run_s, expected_s, has_buckets, time.time()
            )
        )

    def finish_predicted(
        self, *, servable: ServableId, signature: str, errors_s: Sequence[float], host_s: float
    ) -> None:
        """Record the errors of predicted finish times, and the signature's host allowance, in seconds."""
        with self._lock:
            self._host_s[BatchKey(servable, signature)] = host_s
        self._batches.finish_error[BatchKey(servable, signature)].add_all(errors_s)

    def shape_first_run(self, *, servable: ServableId, signature: str) -> None:
        """Record the first run of a shape that warm-up did not run."""
        self._unwarmed.add(BatchKey(servable, signature))

    def version_loaded(self, *, servable: ServableId, costs: CostModel, load_s: float) -> None:
        """Record the load and the cost model of a version that is about to serve."""
        self._loads.add((servable.name, "loaded"))
        with self._lock:
            self._costs[servable] = costs
            self._load_s[servable] = load_s

    def load_failed(self, *, servable: ServableId) -> None:
        """Record an attempt to load a version that has failed."""
        self._loads.add((servable.name, "failed"))

    def runs_hung(self, *, servable: ServableId, count: int) -> None:
        """Record runs that hang."""
        self._hung.add(servable, count)

    def cache_opened(self, *, servable: ServableId, responses: VersionResponses) -> None:
        """Record the response cache of a version that is about to serve."""
        with self._lock:
            self._caches[servable] = responses

    def task_dropped(self, *, servable: ServableId, reason: str, priority: Priority = Priority.HIGH) -> None:
        """Record a request that left the queue before it ran."""
        self._dropped.add((servable, reason, priority))

    def requests_refused(self, *, by: str, count: int) -> None:
        """Record requests that were refused before they were read."""
        self._refused.add(by, count)

    def request_logged(self, *, model: str, outcome: str) -> None:
        """Record an entry of the request log: `written`, or dropped as `queue_full` or `write_failed`."""
        self._logged.add((model, outcome))

    def requests_traced(self, *, outcome: str, count: int) -> None:
        """Record traced requests: `exported`, or dropped as `rate`, `queue_full`, `export_failed` or `rejected`."""
        with self._lock:
            self._traced[outcome] += count

    def version_changed(self, *, servable: ServableId, state: State) -> None:
        """Record a version's state. When the version ends, its series are removed, except its state."""
        with self._lock:
            # Insert it last: ended versions stay in the order in which they ended.
            self._states.pop(servable, None)
            self._states[servable] = state
            if state is not State.END:
                return
            older = {id_ for id_ in self._ended() if id_.name == servable.name and id_ != servable}
            older.update(self._ended()[:-_MAX_ENDED])
            removed = {servable, *older}
            for id_ in older:
                del self._states[id_]
            for batch_key in [key for key in self._host_s if key.servable in removed]:
                del self._host_s[batch_key]
            for id_ in removed:
                self._warmups.pop(id_, None)
                self._costs.pop(id_, None)
                self._load_s.pop(id_, None)
                self._caches.pop(id_, None)
        self._forget(removed)

    def version_warmed(self, *, servable: ServableId, path: Path, records: int, duration_s: float) -> None:
        """Record the warm-up of a version."""
        with self._lock:
            self._warmups[servable] = Warmup(path, records, duration_s)

    # Read by the metrics page.

    @property
    def batches(self) -> BatchMeasurements:
        """Measurements of batches, up to now."""
        self._batches.count()
        return self._batches

    def requests(self) -> Iterator[tuple[RequestKey, Histogram]]:
        """Return request latencies in seconds by key, without those of ended versions."""
        return ((RequestKey(*key), histogram) for key, histogram in self._requests.items())

    def all_requests(self) -> Iterator[tuple[RequestKey, Histogram]]:
        """Return the latencies of `requests`, then those of ended versions. A key may occur twice."""
        ended = ((RequestKey(*key), histogram) for key, histogram in self._ended_requests.items())
        return itertools.chain(self.requests(), ended)

    def exemplars(self, key: RequestKey) -> Mapping[int, TracedRequest]:
        """Return the last traced request in each bucket of LATENCY_BOUNDS_S, by the bucket's position."""
        return self._exemplars.by_bucket(key)

    def stages_s(self) -> Mapping[tuple[str, str, str], float]:
        """Return the seconds of all requests by protocol, model and stage."""
        return self._stages_s.all()

    def stage_requests(self) -> Mapping[tuple[str, str], float]:
        """Return the number of requests whose stages are counted, by protocol and model."""
        return self._stage_requests.all()

    def dropped(self) -> Mapping[tuple[ServableId, str, Priority], float]:
        """Return the number of requests that left the queue before they ran, by version, reason and priority."""
        return self._dropped.all()

    def refused(self) -> Mapping[str, float]:
        """Return the number of requests that were refused before they were read, by their refuser."""
        return self._refused.all()

    def unwarmed(self) -> Mapping[BatchKey, float]:
        """Return the number of runs of shapes that were new after warm-up."""
        return self._unwarmed.all()

    def hung(self) -> Mapping[ServableId, float]:
        """Return the number of runs that hung."""
        return self._hung.all()

    def loads(self) -> Mapping[tuple[str, str], float]:
        """Return the number of attempts to load a version, by model and outcome."""
        return self._loads.all()

    def load_s(self) -> dict[ServableId, float]:
        """Return the duration of the load of each version that has not ended, without its warm-up."""
        with self._lock:
            return dict(self._load_s)

    def costs(self) -> dict[ServableId, tuple[CurveSnapshot, ...]]:
        """Return the learned cost curves of each version that has not ended."""
        with self._lock:
            models = dict(self._costs)
        return {servable: costs.snapshot() for servable, costs in models.items()}

    def caches(self) -> dict[ServableId, CacheCounts]:
        """Return the counts of the response cache of each version that has one and has not ended."""
        with self._lock:
            caches = dict(self._caches)
        return {servable: responses.counts() for servable, responses in caches.items()}

    def host_allowances(self) -> dict[BatchKey, float]:
        """Return the host allowances: seconds of latency objectives that are reserved for work outside the batcher."""
        with self._lock:
            return dict(self._host_s)

    def warmups(self) -> dict[ServableId, Warmup]:
        """Return the warm-up of each version that had one and has not ended."""
        with self._lock:
            return dict(self._warmups)

    def logged(self) -> Mapping[tuple[str, str], float]:
        """Return the number of entries of the request log, by model and outcome."""
        return self._logged.all()

    def traced(self) -> dict[str, int]:
        """Return the number of traced requests, by outcome."""
        with self._lock:
            return dict(self._traced)

    def states(self) -> dict[ServableId, State]:
        """Return the state of each version, including the last ended one of each model, up to a limit."""
        with self._lock:
            return dict(self._states)

    def _ended(self) -> list[ServableId]:
        return [servable for servable, state in self._states.items() if state is State.END]

    def _forget(self, removed: Collection[ServableId]) -> None:
        self._batches.forget(removed)
        self.devices.forget(removed)
        self._dropped.forget(lambda key: key[0] in removed)
        self._unwarmed.forget(lambda key: key.servable in removed)
        self._hung.forget(lambda key: key in removed)
        names = {(servable.name, servable.version) for servable in removed}
        self._exemplars.forget(lambda key: key[:2] in names)
        for (model, _, _, method, protocol, code), histogram in self._requests.take(lambda key: key[:2] in names):
            self._ended_requests[model, None, "", method, protocol, code].absorb(histogram)
