"""Measurements of the server, in one form for both families of metrics: this server's and upstream's.

Other modules format the metrics page.
"""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.models.response_cache import CacheCounts, VersionResponses
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.servable import DeviceGauge
from tpuserve_server.core.terms.types import ServableId, State
from tpuserve_server.observe.metrics import catalogue
from tpuserve_server.observe.metrics.batch_measurements import BatchKey, BatchMeasurements, FinishedBatch, fold_batch
from tpuserve_server.observe.metrics.demand_measurements import DemandMeasurements
from tpuserve_server.observe.metrics.families import Family
from tpuserve_server.observe.metrics.load_measurements import LoadMeasurements
from tpuserve_server.observe.metrics.request_measurements import RequestMeasurements
from tpuserve_server.observe.metrics.series import Counts, ModelPlaces, Places, fold_servable
from tpuserve_server.observe.metrics.server_measurements import ServerMeasurements


class Choice(NamedTuple):
    """Device of a version. `fallback` is a word for the reason against a better device, or empty on the best one."""

    device: str
    fallback: str


class GraphBuilds(NamedTuple):
    """Number of graphs that were built, and the time that it took."""

    number: int = 0
    duration_s: float = 0.0

    def plus(self, duration_s: float) -> "GraphBuilds":
        """Return them with one more."""
        return GraphBuilds(self.number + 1, self.duration_s + duration_s)


class DeviceMeasurements:
    """Implementation of core.terms.servable.DeviceMetrics. Thread-safe: `_lock` guards every field."""

    def __init__(self) -> None:
        """Start with no device in use."""
        self._lock = threading.Lock()
        self._gauges: tuple[DeviceGauge, ...] = ()
        self._choices: dict[ServableId, Choice] = {}
        self._compile_s: dict[ServableId, float] = {}
        self._built = self._compiled = GraphBuilds()

    # Called by executors.

    def devices_opened(self, *, gauges: Sequence[DeviceGauge]) -> None:
        """Record the devices in use."""
        with self._lock:
            self._gauges = tuple(gauges)

    def device_chosen(self, *, servable: ServableId, device: str, fallback: str = "") -> None:
        """Record the device of a version."""
        with self._lock:
            self._choices[servable] = Choice(device, fallback)

    def programs_compiled(self, *, servable: ServableId, duration_s: float) -> None:
        """Record the time in which a version's programs were compiled."""
        with self._lock:
            self._compile_s[servable] = duration_s

    def graph_built(self, *, duration_s: float, with_xla: bool = False) -> None:
        """Record a graph or a program that a runtime has prepared to run."""
        with self._lock:
            self._built = self._built.plus(duration_s)
            if with_xla:
                self._compiled = self._compiled.plus(duration_s)

    def forget(self, removed: Collection[ServableId]) -> None:
        """Remove the records of versions that have ended."""
        with self._lock:
            for servable in removed:
                self._choices.pop(servable, None)
                self._compile_s.pop(servable, None)

    # Read by the metrics page.

    def gauges(self) -> tuple[DeviceGauge, ...]:
        """Return every device in use."""
        with self._lock:
            return self._gauges

    def choices(self) -> dict[ServableId, Choice]:
        """Return the device of each version that has not ended."""
        with self._lock:
            return dict(self._choices)

    def compile_s(self) -> dict[ServableId, float]:
        """Return the compile time in seconds of each version with device programs that has not ended."""
        with self._lock:
            return dict(self._compile_s)

    def graph_builds(self) -> GraphBuilds:
        """Return the graphs and programs that were built since the start."""
        with self._lock:
            return self._built

    def compilations(self) -> GraphBuilds:
        """Return those of `graph_builds` that XLA compiled."""
        with self._lock:
            return self._compiled


# A removed model shows the state of its last version. The limit keeps unused names from accumulating.
_MAX_ENDED = 1000


class Warmup(NamedTuple):
    """Warm-up of a version: its local path, its number of recorded requests, and the duration of the warm-up."""

    path: Path
    records: int
    duration_s: float


class Measurements(RequestMeasurements):
    """Implementation of core.models.metrics.Metrics. Thread-safe: `_lock` guards the counters, and no call blocks long.

    A version's series end with the version. After a thousand roll-outs, a server shows only the versions that it
    serves. TensorFlow Serving's metrics are by model and must not fall, so they keep the counts of ended versions.
    """

    def __init__(self) -> None:
        """Start with no measurements."""
        self.models = models = ModelPlaces()
        super().__init__(models)

        def of_models(family: Family) -> Counts[tuple[str, str]]:
            return Counts(Places(family.name, lambda key: key[0], lambda key, model: (model, key[1]), models))

        def of_signatures(family: Family) -> Counts[BatchKey]:
            return Counts(Places(family.name, lambda key: key.servable.name, fold_batch, models))

        self._lock = threading.Lock()
        self.dropped = Counts[tuple[ServableId, str, Priority]](
            Places(
                catalogue.DROPPED.name,
                lambda key: key[0].name,
                lambda key, model: (fold_servable(model), *key[1:]),
                models,
            )
        )
        self.unwarmed = of_signatures(catalogue.UNWARMED)
        self.untried = of_signatures(catalogue.UNTRIED)
        self.refused_runs = of_signatures(catalogue.REFUSED_RUNS)
        self.hung = Counts[ServableId](
            Places(catalogue.HUNG_RUNS.name, lambda key: key.name, lambda _, model: fold_servable(model), models)
        )
        self.loads = of_models(catalogue.VERSION_LOADS)
        self.paths = LoadMeasurements()
        self._load_s: dict[ServableId, float] = {}
        self._costs: dict[ServableId, CostModel] = {}
        self._caches: dict[ServableId, VersionResponses] = {}
        self._host_s: dict[BatchKey, float] = {}
        self.logged = of_models(catalogue.LOG_RECORDS)
        self._states: dict[ServableId, State] = {}
        self._warmups: dict[ServableId, Warmup] = {}
        self._batches = BatchMeasurements(models)
        self.devices = DeviceMeasurements()
        self.server = ServerMeasurements()
        self.demand = DemandMeasurements(self.server, models)

    # Called by the parts that measure.

    def protocol_served(self, *, protocol: str, in_flight: Callable[[], int]) -> None:
        """Record a front-end of a protocol."""
        self.server.protocol_served(protocol=protocol, in_flight=in_flight)

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

    def shape_first_run(self, *, servable: ServableId, signature: str, is_tried: bool) -> None:
        """Record the first run of a shape that warm-up did not run, and whether the exporter may have checked it."""
        self.unwarmed.add(BatchKey(servable, signature))
        if not is_tried:
            self.untried.add(BatchKey(servable, signature))

    def run_refused(self, *, servable: ServableId, signature: str) -> None:
        """Record a run that the server refused because of its input shapes."""
        self.refused_runs.add(BatchKey(servable, signature))

    def version_loaded(
        self, *, servable: ServableId, path: str, costs: CostModel, load_s: float, restore_s: float
    ) -> None:
        """Record the load and the cost model of a version that is about to serve."""
        self.loads.add((servable.name, "loaded"))
        self.paths.loaded(servable, path, duration_s=load_s, restore_s=restore_s)
        with self._lock:
            self._costs[servable] = costs
            self._load_s[servable] = load_s

    def load_failed(self, *, servable: ServableId, path: str, load_s: float) -> None:
        """Record an attempt to load a version that has failed."""
        self.loads.add((servable.name, "failed"))
        self.paths.failed(servable, path, duration_s=load_s)

    def runs_hung(self, *, servable: ServableId, count: int) -> None:
        """Record runs that hang."""
        self.hung.add(servable, count)

    def cache_opened(self, *, servable: ServableId, responses: VersionResponses) -> None:
        """Record the response cache of a version that is about to serve."""
        with self._lock:
            self._caches[servable] = responses

    def task_dropped(self, *, servable: ServableId, reason: str, priority: Priority = Priority.HIGH) -> None:
        """Record a request that left the queue before it ran."""
        self.dropped.add((servable, reason, priority))

    def request_logged(self, *, model: str, outcome: str) -> None:
        """Record an entry of the request log: `written`, or dropped as `queue_full` or `write_failed`."""
        self.logged.add((model, outcome))

    def version_changed(self, *, servable: ServableId, state: State) -> None:
        """Record a version's state. When the version ends, its series are removed, except its state."""
        with self._lock:
            # Insert it last: ended versions stay in the order in which they ended.
            self._states.pop(servable, None)
            self._states[servable] = state
            has_ended = all(other is State.END for each, other in self._states.items() if each.name == servable.name)
            self.models.model_changed(servable.name, has_ended=has_ended)
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
        self.paths.forget(older)

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

    def load_s(self) -> dict[ServableId, float]:
        """Return the duration of the load of each version that has not ended, without its warm-up."""
        with self._lock:
            return dict(self._load_s)

    def costs(self) -> dict[ServableId, CostModel]:
        """Return the cost model of each version that has not ended."""
        with self._lock:
            return dict(self._costs)

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

    def states(self) -> dict[ServableId, State]:
        """Return the state of each version, including the last ended one of each model, up to a limit."""
        with self._lock:
            return dict(self._states)

    def _ended(self) -> list[ServableId]:
        return [servable for servable, state in self._states.items() if state is State.END]

    def _forget(self, removed: Collection[ServableId]) -> None:
        self._batches.forget(removed)
        self.devices.forget(removed)
        self.dropped.forget(lambda key: key[0] in removed)
        self.unwarmed.forget(lambda key: key.servable in removed)
        self.untried.forget(lambda key: key.servable in removed)
        self.refused_runs.forget(lambda key: key.servable in removed)
        self.hung.forget(lambda key: key in removed)
        self.forget_requests({(servable.name, servable.version) for servable in removed})
