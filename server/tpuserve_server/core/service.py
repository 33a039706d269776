"""InferenceService: the entry point to the models for every protocol and host."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Self

from tpuserve_server.core.batching.batcher import Batcher, Task
from tpuserve_server.core.batching.options import BatchingOptions
from tpuserve_server.core.deadline import Clock, Deadline
from tpuserve_server.core.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, NotFound, ServingError
from tpuserve_server.core.loader import LoadedVersion
from tpuserve_server.core.priority import Priority
from tpuserve_server.core.rare_timers import EARLY_S, RareTimers, RareTimersByLoop
from tpuserve_server.core.registry import ModelRegistry, ServableHandle
from tpuserve_server.core.types import (
    DEFAULT_SIGNATURE_NAME,
    ModelMetadata,
    ModelSpec,
    PredictResult,
    ServableId,
    Signature,
    Tensors,
    VersionStatus,
)
from tpuserve_server.core.validation import (
    check_batchable,
    check_inputs,
    check_row_splits,
    choose_outputs,
    count_plain_rows,
    count_rows,
    describe_shapes,
    matches_shapes,
    with_defaults,
)


class _Acquired:
    """A version that stays loaded for a request. A context manager that releases it."""

    __slots__ = ("_clock", "_handle", "_timers")

    def __init__(self, handle: ServableHandle, clock: Clock, timers: RareTimersByLoop) -> None:
        """Own `handle` until the context ends."""
        self._handle = handle
        self._clock = clock
        self._timers = timers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.release()

    @property
    def servable_id(self) -> ServableId:
        """The version that is held."""
        return self._handle.servable_id

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the version's classes, in the order of its scores. May be empty."""
        return self._handle.loaded.labels

    def has_objective(self, signature_name: str) -> bool:
        """Return whether this signature has a latency objective."""
        return self._handle.loaded.batcher.has_objective(signature_name)

    def record_latency(self, signature_name: str, latency_s: float) -> None:
        """Record a response. See `Batcher.record_latency`. May be called after the version is released."""
        self._handle.loaded.batcher.record_latency(signature_name, latency_s)


class AcquiredModel(_Acquired):
    """One signature of one version, held for a request while its inputs are decoded and run."""

    __slots__ = ("signature",)

    def __init__(self, handle: ServableHandle, signature: Signature, clock: Clock, timers: RareTimersByLoop) -> None:
        """Own `handle` until the context ends."""
        # The base class does the same. A call to it for each request would cost too much.
        self._handle = handle
        self._clock = clock
        self._timers = timers
        self.signature = signature

    async def predict(
        self,
        inputs: Tensors,
        deadline: Deadline,
        output_filter: tuple[str, ...] = (),
        priority: Priority = Priority.HIGH,
    ) -> PredictResult:
        """Run one request through the model's batcher. Cancelling the coroutine frees its place in the queue.

        An empty `output_filter` means every output.

        Raises:
            ServingError: with TensorFlow Serving's code and wording for the cause.
        """
        task = self._make_task(inputs, deadline, output_filter, priority)
        timers = self._submit(task)
        try:
            outcome = await task.future
        except asyncio.CancelledError:
            self._abandon(task)
            raise
        finally:
            if timers is not None:
                timers.cancel(task)
        if isinstance(outcome, ServingError):
            raise self._explained(outcome, task, inputs)
        return PredictResult(self._handle.servable_id, self.signature.name, outcome)

    def _make_task(
        self, inputs: Tensors, deadline: Deadline, output_filter: tuple[str, ...], priority: Priority
    ) -> Task:
        signature, batcher = self.signature, self._handle.loaded.batcher
        rows = count_plain_rows(signature, inputs) if batcher.batches(signature.name) else 0
        if not rows:
            inputs, rows = self._check(inputs)
        return Task(
            signature_name=signature.name,
            output_names=choose_outputs(signature, output_filter),
            inputs=inputs,
            rows=rows or 1,
            deadline=deadline,
            future=asyncio.get_running_loop().create_future(),
            shareable=rows > 0,
            priority=priority,
        )

    def _check(self, inputs: Tensors) -> tuple[Tensors, int]:
        """Return the inputs, with defaults, and their rows, or 0 rows for inputs that must run alone."""
        signature, handle = self.signature, self._handle
        matches = check_inputs(handle.servable_id, signature, inputs)
        if signature.ragged_inputs:
            check_row_splits(signature, with_defaults(signature, inputs))
        # Some inputs run alone. If the shape only loosely fits the signature, the model decides: TensorFlow Serving
        # runs [3] for (None, 1). An empty batch has no row to pad with. A default has its own number of rows.
        if len(inputs) != len(signature.inputs):
            return with_defaults(signature, inputs), 0
        if not handle.loaded.batcher.batches(signature.name):
            return inputs, 0
        if matches:
            return inputs, count_rows(inputs)
        check_batchable(inputs)
        return inputs, 0

    def _submit(self, task: Task) -> RareTimers | None:
        """Queue the task. Return the timers that hold its deadline, or None if it has no deadline."""
        batcher, deadline = self._handle.loaded.batcher, task.deadline
        remaining_s = deadline.at_s - self._clock.monotonic_s()
        if remaining_s <= 0:
            raise DeadlineExceeded(f"Deadline exceeded before request for {self._handle.servable_id} was queued")
        batcher.submit(task)
        if not deadline.is_finite:
            return None
        timers = self._timers.of(task.future.get_loop())
        timers.start(task, remaining_s, partial(_expire, batcher, task, self._handle.servable_id))
        return timers

    def _abandon(self, task: Task) -> None:
        # A host that watches deadlines itself cancels the expired request, with a timer that may fire slightly early.
        expired = task.deadline.expired(self._clock.monotonic_s() + EARLY_S)
        self._handle.loaded.batcher.discard(task, "expired" if expired else "cancelled")

    def _explained(self, error: ServingError, task: Task, inputs: Tensors) -> ServingError:
        """Return a copy of the task's error, to be raised."""
        if not isinstance(error, InvalidArgument) or task.shareable or matches_shapes(self.signature, inputs):
            return error.copy()
        # The model refused a shape that its signature does not guarantee, so the message names the shapes first.
        described = describe_shapes(self._handle.servable_id, self.signature, inputs)
        return InvalidArgument(f"{described} ({error.message})")


class AcquiredVersion(_Acquired):
    """One version, held for a request that finds and runs its signatures itself."""

    __slots__ = ()

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """Every signature by name."""
        return self._handle.loaded.servable.signatures

    def batching(self, signature_name: str) -> BatchingOptions | None:
        """Return how requests for a signature share batches, or None if they run one by one."""
        return self._handle.loaded.batcher.options(signature_name)

    @property
    def default_rows(self) -> int:
        """Maximum number of rows in a batch of a signature whose exporter has checked no sizes."""
        return self._handle.loaded.batcher.default_rows

    async def predict(
        self,
        signature: Signature,
        inputs: Tensors,
        deadline: Deadline,
        output_filter: tuple[str, ...] = (),
        priority: Priority = Priority.HIGH,
    ) -> PredictResult:
        """Run one of this version's signatures like `AcquiredModel.predict`. Several calls may be awaited at a time."""
        return await AcquiredModel(self._handle, signature, self._clock, self._timers).predict(
            inputs, deadline, output_filter, priority
        )


class InferenceService:
    """Predict, metadata and status for the models in the registry.

    Coroutines run on any event loop and do not block it. The other methods are cheap and may be called from any thread.
    """

    def __init__(self, registry: ModelRegistry, clock: Clock) -> None:
        """Serve the models in `registry`."""
        self._registry = registry
        self._clock = clock
        self._timers = RareTimersByLoop()
        self._draining = False
        self._drain_listeners: list[Callable[[], None]] = []

    def acquire(self, spec: ModelSpec) -> AcquiredModel:
        """Hold the model and signature that a spec resolves to. Front-ends use the signature to decode, then predict.

        Raises:
            ServingError: with TensorFlow Serving's code and wording if the spec names nothing that exists.
        """
        handle = self._registry.acquire(spec)
        try:
            return AcquiredModel(handle, _find_signature(handle.loaded, spec), self._clock, self._timers)
        except BaseException:
            handle.release()
            raise

    def acquire_version(self, spec: ModelSpec) -> AcquiredVersion:
        """Hold the version that a spec resolves to, and ignore its signature.

        Raises:
            ServingError: as `acquire` for the same model and version.
        """
        return AcquiredVersion(self._registry.acquire(spec), self._clock, self._timers)

    def metadata(self, spec: ModelSpec) -> ModelMetadata:
        """Return the signatures, labels and precision of the version that a spec resolves to.

        Raises:
            ServingError: as `acquire` for the same model and version.
        """
        with self._registry.acquire(spec) as handle:
            loaded = handle.loaded
            return ModelMetadata(handle.servable_id, loaded.servable.signatures, loaded.labels, loaded.precision)

    def status(self, spec: ModelSpec) -> list[VersionStatus]:
        """Return every version of the model, newest first, or only the version that the spec names.

        Raises:
            NotFound: the model has no versions, or not the one that the spec names.
        """
        versions = self._registry.statuses(spec.name)
        if not versions:
            reason = self._registry.why_no_versions(spec.name)
            raise NotFound(f"Could not find any versions of model {spec.name}{f': {reason}' if reason else ''}")
        if spec.version is None:
            return versions
        named = [status for status in versions if status.servable.version == spec.version]
        if not named:
            raise NotFound(f"Could not find version {spec.version} of model {spec.name}")
        return named

    def models(self) -> list[str]:
        """Return the names of all configured models, sorted."""
        return list(self._registry.model_names())

    def labels(self, name: str) -> dict[str, int]:
        """Return the labels that requests for a model may use, with their versions."""
        return self._registry.labels(name)

    def subscribe(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call `on_change` after a change of state or readiness, on any thread. Return a function to unsubscribe."""
        leave_registry = self._registry.subscribe(on_change)
        self._drain_listeners.append(on_change)

        def unsubscribe() -> None:
            leave_registry()
            self._drain_listeners.remove(on_change)

        return unsubscribe

    def start_failures(self) -> list[tuple[ServableId, ServingError]]:
        """Return each version's error if no model has ever served and all have failed for good, otherwise []."""
        return self._registry.start_failures()

    def is_ready(self) -> bool:
        """Return whether the server is ready and does not drain. See `ModelRegistry.why_not_ready`."""
        return self.why_not_ready() == ""

    def why_not_ready(self) -> str:
        """Return why the server is not ready or drains, as a sentence for people, or "" if it is ready."""
        if self._draining:
            return "draining: the server is shutting down"
        return self._registry.why_not_ready()

    def is_draining(self) -> bool:
        """Return whether the server is shutting down."""
        return self._draining

    def drain(self) -> None:
        """Report not ready from now on, so that load balancers use other servers. Requests are still served."""
        self._draining = True
        for listener in list(self._drain_listeners):
            listener()


def _find_signature(loaded: LoadedVersion, spec: ModelSpec) -> Signature:
    name = spec.signature_name or DEFAULT_SIGNATURE_NAME
    signature = loaded.servable.signatures.get(name)
    if signature is None:
        raise FailedPrecondition(f'Serving signature key "{name}" not found.')
    return signature


def _expire(batcher: Batcher, task: Task, servable_id: ServableId) -> None:
    """Answer a request whose deadline has passed, even if the device is busy with another batch for long."""
    if task.future.done():
        return
    batcher.discard(task, "expired")
    task.future.set_result(DeadlineExceeded(f"Deadline exceeded while waiting for {servable_id}"))
