"""Fakes of a front-end's dependencies: a service with scripted responses, recording metrics, a set clock."""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from tpuserve_server.core.serving.service import AcquiredModel, AcquiredVersion, InferenceService
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import Code, FailedPrecondition, Fault, NotFound, ServingError, TooLate
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import (
    DEFAULT_SIGNATURE_NAME,
    CacheOutcome,
    ModelMetadata,
    ModelSpec,
    Precision,
    PredictResult,
    ServableId,
    Signature,
    State,
    Tensors,
    TensorSpec,
    VersionStatus,
)
from tpuserve_server.core.terms.validation import EXACT_SHAPES

FLOAT = np.dtype(np.float32)


def half_plus_two_signature() -> Signature:
    """Return x to y = x / 2 + 2, like TensorFlow Serving's own test model."""
    return Signature(
        DEFAULT_SIGNATURE_NAME,
        inputs={"x": TensorSpec("x", FLOAT, None, "x:0")},
        outputs={"y": TensorSpec("y", FLOAT, None, "y:0")},
        method_name="tensorflow/serving/predict",
    )


def half_plus_two(inputs: Tensors) -> Tensors:
    return {"y": inputs["x"] / np.float32(2) + np.float32(2)}


@dataclass
class FakeClock:
    now_s: float = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s


@dataclass(frozen=True)
class Finished:
    model: str
    method: str
    protocol: str
    code: Code
    latency_s: float
    # Excluded from comparison, because not every test sets them.
    version: int | None = field(default=None, compare=False)
    signature: str = field(default="", compare=False)


@dataclass
class FakeMetrics:
    """Metrics that record the front-ends' reports."""

    finished: list[Finished] = field(default_factory=list)
    faults: list[tuple[Code, Fault]] = field(default_factory=list)
    examples: list[tuple[str, int]] = field(default_factory=list)
    in_flight: dict[str, Callable[[], int]] = field(default_factory=dict)
    # Stages of the sampled requests, each with the number of requests that it stands for.
    stages: list[tuple[dict[str, float], int]] = field(default_factory=list)

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
        self.finished.append(Finished(model, method, protocol, code, latency_s, version, signature))

    def request_failed(self, *, model: str, version: int | None, method: str, code: Code, fault: Fault) -> None:
        self.faults.append((code, fault))

    def answers_of(
        self, *, model: str, version: int, signature: str, method: str, protocol: str
    ) -> Callable[[float, str], None]:
        def record(latency_s: float, _trace_id: str) -> None:
            self.finished.append(Finished(model, method, protocol, Code.OK, latency_s, version, signature))

        return record

    def examples_received(self, *, model: str, count: int) -> None:
        self.examples.append((model, count))

    def protocol_served(self, *, protocol: str, in_flight: Callable[[], int]) -> None:
        self.in_flight[protocol] = in_flight

    def stages_sampled(self, *, protocol: str, model: str, stages: Iterable[tuple[str, float]], requests: int) -> None:
        self.stages.append((dict(stages), requests))

    def batch_finished(self, **measured: object) -> None:
        raise AssertionError("front-ends run no batches")

    def finish_predicted(self, **measured: object) -> None:
        raise AssertionError("front-ends predict nothing")

    def shape_first_run(self, **measured: object) -> None:
        raise AssertionError("front-ends run no shapes")

    def run_refused(self, **measured: object) -> None:
        raise AssertionError("front-ends refuse no runs")

    def version_loaded(self, **measured: object) -> None:
        raise AssertionError("front-ends load no versions")

    def load_failed(self, **measured: object) -> None:
        raise AssertionError("front-ends load no versions")

    def runs_hung(self, **measured: object) -> None:
        raise AssertionError("front-ends run no batches")

    def cache_opened(self, **measured: object) -> None:
        raise AssertionError("front-ends load no versions")

    def task_dropped(self, **measured: object) -> None:
        raise AssertionError("front-ends drop no tasks")

    def version_changed(self, **measured: object) -> None:
        raise AssertionError("front-ends change no versions")

    def version_warmed(self, **measured: object) -> None:
        raise AssertionError("front-ends warm no versions")


@dataclass(frozen=True)
class Prediction:
    """A prediction that a front-end requested from FakeService."""

    spec: ModelSpec
    inputs: Tensors
    output_filter: tuple[str, ...]
    deadline: Deadline
    priority: Priority


class FakeAcquiredModel(AcquiredModel):
    """A signature of FakeService's model. `released` is True after its release."""

    __slots__ = ("_service", "_spec", "released")

    def __init__(self, service: "FakeService", spec: ModelSpec, signature: Signature) -> None:
        self._service = service
        self._spec = spec
        self.signature = signature
        self._times = ()
        self.is_recalled = False
        self.released = False
        service.acquired.append(self)

    def __exit__(self, *exception: object) -> None:
        self.released = True

    @property
    def servable_id(self) -> ServableId:
        return ServableId("m", 7)

    @property
    def labels(self) -> tuple[str, ...]:
        return self._service.class_names

    @property
    def max_repeated_rows(self) -> float:
        return math.inf

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        EXACT_SHAPES.check(self.servable_id, self.signature, name, shape)

    def prepare(self, inputs: Tensors, output_filter: tuple[str, ...] = ()) -> None:
        """Return None: there is no batcher."""

    def has_objective(self, signature_name: str) -> bool:
        return self._service.promised

    def fastest_s(self, signature_name: str) -> float:
        return self._service.fastest_s

    def record_latency(self, signature_name: str, latency_s: float) -> None:
        self._service.answers.append((signature_name, latency_s))

    def check_deadline(self, deadline: Deadline, priority: Priority) -> None:
        self._service.check_deadline(self._spec, deadline, priority)

    async def predict(
        self,
        inputs: Tensors,
        deadline: Deadline,
        output_filter: tuple[str, ...] = (),
        priority: Priority = Priority.HIGH,
    ) -> PredictResult:
        return await self._service.run_prediction(Prediction(self._spec, inputs, output_filter, deadline, priority))


class FakeAcquiredVersion(AcquiredVersion):
    """FakeService's version."""

    __slots__ = ("_service",)

    def __init__(self, service: "FakeService") -> None:
        self._service = service
        self._times = ()
        self.is_recalled = False

    def __exit__(self, *exception: object) -> None:
        pass

    @property
    def servable_id(self) -> ServableId:
        return ServableId("m", 7)

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self._service.signatures

    def has_objective(self, signature_name: str) -> bool:
        return self._service.promised

    def fastest_s(self, signature_name: str) -> float:
        return self._service.fastest_s

    async def predict(
        self,
        signature: Signature,
        inputs: Tensors,
        deadline: Deadline,
        output_filter: tuple[str, ...] = (),
        priority: Priority = Priority.HIGH,
    ) -> PredictResult:
        spec = ModelSpec("m", signature_name=signature.name)
        return await self._service.run_prediction(Prediction(spec, inputs, output_filter, deadline, priority))


class FakeService(InferenceService):
    """A service with one model, `m`, version 7. A test scripts its arithmetic, faults and readiness. No registry, no
    batcher.
    """

    def __init__(
        self,
        run: Callable[[Tensors], Tensors] = half_plus_two,
        signatures: Mapping[str, Signature] | None = None,
    ) -> None:
        self.cached_models = ()
        self._residency = None
        self.run = run
        self.signatures = dict(signatures or {DEFAULT_SIGNATURE_NAME: half_plus_two_signature()})
        self.requests: list[Prediction] = []
        self.acquired: list[FakeAcquiredModel] = []
        self.fault: Exception | None = None
        self.not_ready = ""
        self.not_live = ""
        self.listeners: list[Callable[[], None]] = []
        # A test that clears it blocks every prediction. A blocked prediction sets `waiting`.
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = asyncio.Event()
        self.cancelled = 0
        self.statuses = [VersionStatus(ServableId("m", 7), State.AVAILABLE)]
        self.label_versions: dict[str, int] = {}
        self.class_names: tuple[str, ...] = ()
        self.precision: Precision | None = None
        self.cache: CacheOutcome = ""
        # Requests with an earlier deadline are refused before they are decoded.
        self.busy_until_s = 0.0
        # Seconds of the fastest run of every signature.
        self.fastest_s = 0.0
        # Whether it has a latency objective, and the responses under it with their latencies.
        self.promised = False
        self.answers: list[tuple[str, float]] = []

    async def run_prediction(self, request: Prediction) -> PredictResult:
        self._check(request.spec)
        self.requests.append(request)
        self.waiting.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.fault is not None:
            raise self.fault
        with self.acquire(request.spec) as model:
            return PredictResult(ServableId("m", 7), model.signature.name, self.run(request.inputs), self.cache)

    def check_deadline(self, spec: ModelSpec, deadline: Deadline, priority: Priority) -> None:
        if deadline.at_s < self.busy_until_s:
            raise TooLate("too late", retry_after_s=1.5)

    def acquire(self, spec: ModelSpec) -> "FakeAcquiredModel":
        self._check(spec)
        name = spec.signature_name or DEFAULT_SIGNATURE_NAME
        if name not in self.signatures:
            raise FailedPrecondition(f'Serving signature key "{name}" not found.')
        return FakeAcquiredModel(self, spec, self.signatures[name])

    def acquire_version(self, spec: ModelSpec) -> FakeAcquiredVersion:
        self._check(spec)
        return FakeAcquiredVersion(self)

    def probe(self, spec: ModelSpec) -> ServableId:
        self._check(spec)
        return ServableId("m", 7)

    def metadata(self, spec: ModelSpec) -> ModelMetadata:
        self._check(spec)
        return ModelMetadata(ServableId("m", 7), self.signatures, precision=self.precision)

    def status(self, spec: ModelSpec) -> list[VersionStatus]:
        if spec.name != "m" or not self.statuses:
            raise NotFound(f"Could not find any versions of model {spec.name}")
        named = [status for status in self.statuses if spec.version in (None, status.servable.version)]
        if not named:
            raise NotFound(f"Could not find version {spec.version} of model {spec.name}")
        return named

    def status_once_read(self, spec: ModelSpec) -> list[VersionStatus]:
        return self.status(spec)

    def models(self) -> list[str]:
        return ["m"]

    def is_served(self, name: str) -> bool:
        return any(status.state is State.AVAILABLE for status in self.statuses)

    def labels(self, name: str) -> dict[str, int]:
        return self.label_versions

    def subscribe(self, on_change: Callable[[], None]) -> Callable[[], None]:
        self.listeners.append(on_change)
        return lambda: self.listeners.remove(on_change)

    def why_not_ready(self) -> str:
        return self.not_ready

    def why_not_live(self) -> str:
        return self.not_live

    def why_hung(self, servable_id: ServableId) -> str:
        return self.not_live

    def set_ready(self, reason: str = "") -> None:
        """Change readiness and call the listeners, from the calling thread."""
        self.not_ready = reason
        for listener in list(self.listeners):
            listener()

    def _check(self, spec: ModelSpec) -> None:
        error: ServingError | None = None
        if spec.name != "m":
            error = NotFound(f"Servable not found for request: Latest({spec.name})")
        elif spec.version not in (None, 7):
            error = NotFound(f"Servable not found for request: Specific(m, {spec.version})")
        if error is not None:
            raise error
