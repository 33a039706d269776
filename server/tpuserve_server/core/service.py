"""InferenceService: the one door through which every protocol and host reaches the models."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Self

from tpuserve_server.core.batching.batcher import Batcher, Task
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


class _Held:
    """A version that stays loaded for a request. A context manager, which lets it go."""

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

    def promises(self, signature_name: str) -> bool:
        """Whether answers of this signature are to go out within a latency objective."""
        return self._handle.loaded.batcher.promises(signature_name)

    def answered(self, signature_name: str, latency_s: float) -> None:
        """As `Batcher.answered`. May be called when the version has been let go."""
        self._handle.loaded.batcher.answered(signature_name, latency_s)


class HeldModel(_Held):
    """One signature of one version, held for a request: what was decoded by it is run by it."""

    __slots__ = ("signature",)

    def __init__(self, handle: ServableHandle, signature: Signature, clock: Clock, timers: RareTimersByLoop) -> None:
        """Own `handle` until the context ends."""
        # As the base does; a call for each request would be one too many.
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
            ServingError: with TensorFlow Serving's code and wording for what is wrong.
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
        """The inputs, with defaults, and their rows; 0 for inputs that must run alone."""
        signature, handle = self.signature, self._handle
        matches = check_inputs(handle.servable_id, signature, inputs)
        if signature.ragged_inputs:
            check_row_splits(signature, with_defaults(signature, inputs))
        # A laxer shape than the signature's is the model's to judge, alone: TensorFlow Serving runs [3] for (None, 1).
        # So is an empty batch, which has no row to pad with, and a default, which has its own number of rows.
        if len(inputs) != len(signature.inputs):
            return with_defaults(signature, inputs), 0
        if not handle.loaded.batcher.batches(signature.name):
            return inputs, 0
        if matches:
            return inputs, count_rows(inputs)
        check_batchable(inputs)
        return inputs, 0

    def _submit(self, task: Task) -> RareTimers | None:
        """Queue the task. The timers that have its deadline, if it has one."""
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
        # A host that watches deadlines itself cancels what has missed one, by a timer that may be a little early.
        expired = task.deadline.expired(self._clock.monotonic_s() + EARLY_S)
        self._handle.loaded.batcher.discard(task, "expired" if expired else "cancelled")

    def _explained(self, error: ServingError, task: Task, inputs: Tensors) -> ServingError:
        """A copy of what became of the task, to be raised."""
        if not isinstance(error, InvalidArgument) or task.shareable or matches_shapes(self.signature, inputs):
            return error.copy()
        # The model refused a shape that its signature does not promise to take: say so in its terms first.
        described = describe_shapes(self._handle.servable_id, self.signature, inputs)
        return InvalidArgument(f"{described} ({error.message})")


class HeldVersion(_Held):
    """One version, held for a request that finds and runs its signatures itself."""

    __slots__ = ()

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """Every signature by name."""
        return self._handle.loaded.servable.signatures

    async def predict(
        self,
        signature: Signature,
        inputs: Tensors,
        deadline: Deadline,
        output_filter: tuple[str, ...] = (),
        priority: Priority = Priority.HIGH,
    ) -> PredictResult:
        """As `HeldModel.predict`, with one of this version's signatures. May be awaited several at a time."""
        return await HeldModel(self._handle, signature, self._clock, self._timers).predict(
            inputs, deadline, output_filter, priority
        )


class InferenceService:
    """Predict, metadata and status over the registry.

    Coroutines run on any event loop and nothing blocks it; the other methods are cheap and may be called anywhere.
    """

    def __init__(self, registry: ModelRegistry, clock: Clock) -> None:
        """Serve what `registry` holds."""
        self._registry = registry
        self._clock = clock
        self._timers = RareTimersByLoop()
        self._draining = False
        self._drain_listeners: list[Callable[[], None]] = []

    def hold(self, spec: ModelSpec) -> HeldModel:
        """The model and signature a spec resolves to. Front-ends decode by the signature, and predict.

        Raises:
            ServingError: with TensorFlow Serving's code and wording for what the spec does not name.
        """
        handle = self._registry.acquire(spec)
        try:
            return HeldModel(handle, _find_signature(handle.loaded, spec), self._clock, self._timers)
        except BaseException:
            handle.release()
            raise

    def hold_version(self, spec: ModelSpec) -> HeldVersion:
        """The version a spec resolves to, whatever signature it names.

        Raises:
            ServingError: as `hold` for the same model and version.
        """
        return HeldVersion(self._registry.acquire(spec), self._clock, self._timers)

    def metadata(self, spec: ModelSpec) -> ModelMetadata:
        """Return the signatures, labels and precision of the version a spec resolves to.

        Raises:
            ServingError: as `hold` for the same spec.
        """
        with self._registry.acquire(spec) as handle:
            loaded = handle.loaded
            return ModelMetadata(handle.servable_id, loaded.servable.signatures, loaded.labels, loaded.precision)

    def status(self, spec: ModelSpec) -> list[VersionStatus]:
        """Every version of the model, newest first, or the one version named.

        Raises:
            NotFound: the model has no versions, or not that one.
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
        """Names of all configured models, sorted."""
        return list(self._registry.model_names())

    def labels(self, name: str) -> dict[str, int]:
        """The labels that requests for a model may use, and the versions that they stand for."""
        return self._registry.labels(name)

    def subscribe(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call `on_change` after any version's state or the readiness changed, from any thread; returns the way out."""
        leave_registry = self._registry.subscribe(on_change)
        self._drain_listeners.append(on_change)

        def leave() -> None:
            leave_registry()
            self._drain_listeners.remove(on_change)

        return leave

    def start_failures(self) -> list[tuple[ServableId, ServingError]]:
        """What became of each version when nothing could be served since the start, nor will be; empty before."""
        return self._registry.start_failures()

    def is_ready(self) -> bool:
        """Whether every model has an AVAILABLE version or has failed for good, and the server is not draining."""
        return self.why_not_ready() == ""

    def why_not_ready(self) -> str:
        """A sentence for people, empty when ready."""
        if self._draining:
            return "draining: the server is shutting down"
        return self._registry.why_not_ready()

    def is_draining(self) -> bool:
        """Whether the server is on its way out."""
        return self._draining

    def drain(self) -> None:
        """Say not ready from now on, so that balancers send requests elsewhere; those that come are still served."""
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
    """The deadline passed: answer now, though the device may be busy with another batch for long."""
    if task.future.done():
        return
    batcher.discard(task, "expired")
    task.future.set_result(DeadlineExceeded(f"Deadline exceeded while waiting for {servable_id}"))
