"""A device for tests: deterministic arithmetic, a gate that holds a batch, and scripted faults."""

import asyncio
import queue
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.device_share import DeviceShare, Turn
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.models.response_cache import VersionResponses
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import InvalidArgument, ServingError
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.servable import VersionFiles
from tpuserve_server.core.terms.types import Array, ServableId, Signature, State, Tensors, TensorSpec

if TYPE_CHECKING:
    from tpuserve_server.core.batching.batcher import Batcher

FLOAT = np.dtype(np.float32)

DOUBLE = Signature(
    name="serving_default",
    inputs={"x": TensorSpec("x", FLOAT, (None, 2), "x:0")},
    outputs={"y": TensorSpec("y", FLOAT, (None, 2), "y:0"), "x": TensorSpec("x", FLOAT, (None, 2), "x:0")},
    method_name="tensorflow/serving/predict",
)

# DOUBLE for rows of any width.
DOUBLE_WIDE = Signature(
    name="serving_default",
    inputs={"x": TensorSpec("x", FLOAT, (None, None), "x:0")},
    outputs={"y": TensorSpec("y", FLOAT, (None, None), "y:0"), "x": TensorSpec("x", FLOAT, (None, None), "x:0")},
    method_name="tensorflow/serving/predict",
)


@dataclass
class FakeServable:
    """A servable that returns y = 2 x, and x unchanged. A negative number raises an error, like invalid data in a
    model.
    """

    signatures: Mapping[str, Signature] = field(default_factory=lambda: {"serving_default": DOUBLE})
    device: str = "fake"
    max_in_flight: int = 1
    unrepeatable: str = ""
    never_blocks: bool = False
    gate: threading.Event = field(default_factory=threading.Event)
    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    batches: list[dict[str, Array]] = field(default_factory=list)
    fault: Exception | None = None
    closed: bool = False
    outputs: Tensors | None = None
    # Called before each run, `on_inputs` with the arrays.
    on_batch: Callable[[], object] = lambda: None
    on_inputs: Callable[[Tensors], object] = lambda inputs: None

    def __post_init__(self) -> None:
        self.gate.set()

    def dispatch(self, signature_name: str, inputs: Tensors, output_names: Sequence[str]) -> "FakeRun":
        self.on_batch()
        self.on_inputs(inputs)
        self.batches.append({name: array.copy() for name, array in inputs.items()})
        return FakeRun(self, inputs, output_names)

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeRun:
    """A run that waits at the gate before it returns a result."""

    servable: FakeServable
    inputs: Tensors
    output_names: Sequence[str]

    def result(self) -> Tensors:
        self.servable.entered.release()
        assert self.servable.gate.wait(10), "the test never opened the gate"
        if self.servable.fault is not None:
            raise self.servable.fault
        if self.servable.outputs is not None:
            return self.servable.outputs
        x = self.inputs["x"]
        if x.dtype != object and (x < 0).any():
            raise InvalidArgument("x must not be negative")
        every = {"y": x + x, "x": x}
        return {name: every[name] for name in self.output_names}


class WatchedDevice(DeviceShare):
    """A device share that releases `lined_up` when a device thread enters the queue, or gets a slot at once.

    `weights` are those of the current members.
    """

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.lined_up = threading.Semaphore(0)
        self.weights: dict[str, float] = {}

    def join(self, servable_id: ServableId, weight: float) -> None:
        super().join(servable_id, weight)
        self.weights[servable_id.name] = weight

    def leave(self, servable_id: ServableId) -> None:
        super().leave(servable_id)
        del self.weights[servable_id.name]

    def _line_up(self, turn: Turn) -> bool:
        waits = super()._line_up(turn)
        self.lined_up.release()
        return waits


class _NoBatcher:
    """A batcher without threads, for tests in which nothing runs."""

    def hung_s(self) -> float:
        return 0.0


NO_BATCHER = cast("Batcher", _NoBatcher())


class FakeExecutor:
    """An executor that loads any version, or fails as scripted by version."""

    def __init__(self) -> None:
        self.loaded: dict[ServableId, FakeServable] = {}
        self.faults: dict[int, ServingError] = {}

    def load(self, servable_id: ServableId, version: VersionFiles) -> FakeServable:
        if servable_id.version in self.faults:
            raise self.faults[servable_id.version]
        servable = self.loaded[servable_id] = FakeServable()
        return servable


class FakeClock:
    """A clock that advances on request, and wakes the threads that wait for it."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._lock = threading.Lock()
        self._conditions: set[threading.Condition] = set()
        # Gets the target time when a thread starts to wait.
        self.waits: queue.SimpleQueue[float] = queue.SimpleQueue()

    def monotonic_s(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        """Advance the time, and wake all waiting threads."""
        with self._lock:
            self.now_s += seconds
            conditions = list(self._conditions)
        for condition in conditions:
            with condition:
                condition.notify_all()

    def wait_until(self, condition: threading.Condition, at_s: float) -> None:
        with self._lock:
            if at_s <= self.now_s:
                return
            self._conditions.add(condition)
        self.waits.put(at_s)
        condition.wait()


class RecordingMetrics:
    """Metrics that record every measurement, in order."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int]] = []
        self.dropped: list[str] = []
        self.dropped_priorities: list[Priority] = []
        self.states: list[tuple[int, State]] = []
        self.warmups: list[tuple[int, int]] = []
        self.finish_errors_s: list[float] = []
        self.unwarmed: list[str] = []
        self.untried = 0
        self.refused_runs: list[str] = []
        self.costs: dict[int, CostModel] = {}
        self.caches: dict[int, VersionResponses] = {}
        self.load_s: dict[int, float] = {}
        self.restore_s: dict[int, float] = {}
        # Paths of all attempts, those that failed included.
        self.load_paths: list[str] = []
        self.failed_loads: list[ServableId] = []
        self.hung: Counter[ServableId] = Counter()

    def request_finished(self, **measured: object) -> None:
        raise AssertionError("devices answer no requests")

    def answers_of(self, **measured: object) -> Callable[[float, str], None]:
        raise AssertionError("devices answer no requests")

    def examples_received(self, *, model: str, count: int) -> None:
        raise AssertionError("devices read no Examples")

    def protocol_served(self, **measured: object) -> None:
        raise AssertionError("devices serve no protocols")

    def stages_sampled(self, **measured: object) -> None:
        raise AssertionError("devices answer no requests")

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
        self.batches.append((sum(task_rows), bucket))

    def finish_predicted(
        self, *, servable: ServableId, signature: str, errors_s: Sequence[float], host_s: float
    ) -> None:
        self.finish_errors_s.extend(errors_s)

    def shape_first_run(self, *, servable: ServableId, signature: str, is_tried: bool) -> None:
        self.unwarmed.append(signature)
        self.untried += not is_tried

    def run_refused(self, *, servable: ServableId, signature: str) -> None:
        self.refused_runs.append(signature)

    def version_loaded(
        self, *, servable: ServableId, path: str, costs: CostModel, load_s: float, restore_s: float
    ) -> None:
        self.costs[servable.version] = costs
        self.load_s[servable.version] = load_s
        self.restore_s[servable.version] = restore_s
        self.load_paths.append(path)

    def load_failed(self, *, servable: ServableId, path: str, load_s: float) -> None:
        self.failed_loads.append(servable)
        self.load_paths.append(path)

    def runs_hung(self, *, servable: ServableId, count: int) -> None:
        self.hung[servable] += count

    def request_failed(self, **measured: object) -> None:
        """Record nothing."""

    def cache_opened(self, *, servable: ServableId, responses: VersionResponses) -> None:
        self.caches[servable.version] = responses

    def task_dropped(self, *, servable: ServableId, reason: str, priority: Priority = Priority.HIGH) -> None:
        self.dropped.append(reason)
        self.dropped_priorities.append(priority)

    def version_changed(self, *, servable: ServableId, state: State) -> None:
        self.states.append((servable.version, state))

    def version_warmed(self, *, servable: ServableId, path: Path, records: int, duration_s: float) -> None:
        assert duration_s >= 0
        self.warmups.append((servable.version, records))


def double_task(*values: float) -> Task:
    """Return a request to DOUBLE with one row per value, on the running event loop."""
    return Task(
        signature_name=DOUBLE.name,
        output_names=("y",),
        inputs={"x": np.array([[value, value] for value in values], np.float32)},
        rows=len(values),
        deadline=Deadline.never(),
        future=asyncio.get_running_loop().create_future(),
        shareable=True,
    )
