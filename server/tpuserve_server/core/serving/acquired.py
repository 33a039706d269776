"""AcquiredModel and AcquiredVersion: a version that a request holds while it runs. Check its inputs and queue it."""

import asyncio
import math
from collections.abc import Coroutine, Mapping
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.parameters import BatchingOptions
from tpuserve_server.core.batching.task import Outcome, Task, Waiter, settle
from tpuserve_server.core.models.loader import LoadedVersion
from tpuserve_server.core.models.response_cache import LARGE_INPUT_BYTES, VersionResponses, input_bytes
from tpuserve_server.core.models.servable_handle import ServableHandle
from tpuserve_server.core.system.timers import EARLY_S, RareTimersByLoop
from tpuserve_server.core.terms.batch_run import TaskTimes
from tpuserve_server.core.terms.deadline import Clock, Deadline
from tpuserve_server.core.terms.ensemble import Ensemble
from tpuserve_server.core.terms.errors import DeadlineExceeded, InvalidArgument, ServingError
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import Precision, PredictResult, ServableId, Signature, Tensors
from tpuserve_server.core.terms.validation import (
    EXACT_SHAPES,
    ShapeRules,
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


class PreparedRequest(NamedTuple):
    """The checked facts about requests for one signature of one loaded version.

    They hold for all inputs with the same names, dtypes and shapes. `version` is the mark of its batcher, because they
    must not keep the version in memory. The requests name the outputs of `output_filter`, and get those of
    `output_names`. With `is_shared`, the rows may share batches.
    """

    version: Any
    signature_name: str
    output_filter: tuple[str, ...]
    output_names: tuple[str, ...]
    rows: int
    is_shared: bool


class _LookUp(NamedTuple):
    """A request that was looked up in the response cache: its key, and its outputs if the cache has them."""

    responses: VersionResponses
    key: bytes
    outputs: Tensors | None
    look_up_s: float


class _Acquired:
    """A version that stays loaded for a request. A context manager that releases it."""

    __slots__ = ("_clock", "_handle", "_loaded", "_shapes", "_timers", "_times", "is_recalled")

    def __init__(
        self,
        handle: ServableHandle,
        loaded: LoadedVersion,
        clock: Clock,
        timers: RareTimersByLoop,
        shapes: ShapeRules = EXACT_SHAPES,
    ) -> None:
        """Own `handle` on `loaded` until the context ends. `shapes` are the rules for inputs."""
        self._handle = handle
        self._loaded = loaded
        self._clock = clock
        self._timers = timers
        self._shapes = shapes
        # Whether a response came from the cache.
        self.is_recalled = False
        self._times: tuple[TaskTimes, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Release the version. Once, unless the context manager does it."""
        self._handle.release()

    @property
    def servable_id(self) -> ServableId:
        """The version that is held."""
        return self._handle.servable_id

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the version's classes, in the order of its scores. May be empty."""
        return self._loaded.labels

    @property
    def times(self) -> tuple[TaskTimes, ...]:
        """One entry for each pass through a batcher that has ended, with or without success."""
        return self._times

    def has_objective(self, signature_name: str) -> bool:
        """Return whether this signature has a latency objective."""
        return self._loaded.batcher.has_objective(signature_name)

    def fastest_s(self, signature_name: str) -> float:
        """Return a lower bound of the seconds that a request for this signature takes on an idle server.

        May be called after the version is released.
        """
        return 0.0 if self._loaded.responses is not None else self._loaded.costs.fastest_s((signature_name,))

    def record_latency(self, signature_name: str, latency_s: float) -> None:
        """Record a response. See `Batcher.record_latency`. May be called after the version is released."""
        # A response from the cache shows nothing about the host's share of the time of a run.
        if not self.is_recalled:
            self._loaded.batcher.record_latency(signature_name, latency_s)


class AcquiredModel(_Acquired):
    """One signature of one version, held for a request while its inputs are decoded and run."""

    __slots__ = ("_look_up", "_task", "signature")

    def __init__(
        self,
        handle: ServableHandle,
        loaded: LoadedVersion,
        signature: Signature,
        clock: Clock,
        timers: RareTimersByLoop,
        shapes: ShapeRules = EXACT_SHAPES,
    ) -> None:
        """Own `handle` on `loaded` until the context ends. `shapes` are the rules for inputs."""
        # The base class does the same. A call to it for each request would cost too much.
        self._handle = handle
        self._loaded = loaded
        self._clock = clock
        self._timers = timers
        self._shapes = shapes
        self.is_recalled = False
        self._times = ()
        self.signature = signature
        # Of the request that `begin` has queued. Its waiter may refer to this object: only the garbage collector would
        # free them if it stayed.
        self._task: Task | None = None
        self._look_up: _LookUp | None = None

    @property
    def max_rows(self) -> int:
        """Maximum number of rows of a request whose inputs have a batch dimension."""
        options = self._loaded.batcher.options.get(self.signature.name)
        return self._loaded.batcher.default_rows if options is None else options.max_batch_size

    @property
    def max_repeated_rows(self) -> float:
        """Maximum number of rows for which a request may repeat a value; inf if its rows are not batched."""
        options = self._loaded.batcher.options.get(self.signature.name)
        return math.inf if options is None else options.max_batch_size

    def check_deadline(self, deadline: Deadline, priority: Priority) -> None:
        """Check whether a request would be in time, before its inputs are decoded. Cheap.

        Raises:
            TooLate: it would be answered after its deadline.
        """
        # The response cache may have the response.
        if deadline.is_finite and self._loaded.responses is None:
            self._loaded.batcher.refusals.check(self.signature.name, deadline, priority)

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Check the shape that a request declares for an input of the signature, before the input takes memory.

        `predict` makes the same check for all inputs.

        Raises:
            InvalidArgument: see `ShapeRules.check`.
        """
        self._shapes.check(self._handle.servable_id, self.signature, name, shape)

    def prepare(self, inputs: Tensors, output_filter: tuple[str, ...] = ()) -> PreparedRequest | None:
        """Check a request for `begin`, for all inputs with the same names, dtypes and shapes.

        Return None for requests that `predict` must check one by one.

        Raises:
            InvalidArgument: the inputs do not match the signature, or the filter has an unknown or a repeated output.
        """
        signature, batcher = self.signature, self._loaded.batcher
        is_shared = signature.name in batcher.options
        if is_shared:
            rows = count_plain_rows(signature, inputs)
        else:
            # Row splits have rules for their numbers, and defaults are more inputs than those of the request.
            has_all = len(inputs) == len(signature.inputs) and not signature.ragged_inputs
            rows = 1 if has_all and check_inputs(self._handle.servable_id, signature, inputs, self._shapes) else 0
        if not rows:
            return None
        output_names = choose_outputs(signature, output_filter)
        return PreparedRequest(batcher.mark, signature.name, output_filter, output_names, rows, is_shared)

    def is_prepared(self, prepared: PreparedRequest) -> bool:
        """Return whether `prepare` of the same version returned `prepared`."""
        return prepared.version is self._loaded.batcher.mark

    def begin(
        self, prepared: PreparedRequest, inputs: Tensors, deadline: Deadline, priority: Priority, waiter: Waiter
    ) -> PredictResult | None:
        """Queue a request like `predict`, without the checks that `prepared` has made. Once for each acquired model.

        `waiter` gets the outcome, which `end` turns into the result. Return the result if the response cache has it.

        `is_prepared` must hold, and the inputs must have the names, dtypes and shapes of those that were prepared.

        Raises:
            ServingError: the deadline has passed, or the batcher refuses the request.
        """
        if self._loaded.responses is not None:
            self._look_up = look_up = self._find(inputs, prepared.output_filter)
            if look_up is not None and look_up.outputs is not None:
                return self._recalled(look_up.outputs)
        _, name, _, output_names, rows, is_shared = prepared
        future = cast("asyncio.Future[Outcome]", waiter)
        task = Task(name, output_names, inputs, rows, deadline, future, shareable=is_shared, priority=priority)
        self._submit(task)
        self._task = task
        return None

    def end(self, outcome: Outcome) -> PredictResult:
        """Return the result of the request that `begin` queued.

        Raises:
            ServingError: with TensorFlow Serving's code and wording for the cause.
        """
        task, self._task = self._task, None
        assert task is not None, "begin sets it"
        self._ended(task)
        result = self._result_of(task, outcome)
        return result if self._look_up is None else self._kept(self._look_up, result)

    def abandon(self) -> None:
        """Free the place in the queue of the request that `begin` queued, if it did. It gets no outcome."""
        task, self._task = self._task, None
        if task is not None:
            self._ended(task)
            self._abandon(task)

    def predict(
        self,
        inputs: Tensors,
        deadline: Deadline,
        output_filter: tuple[str, ...] = (),
        priority: Priority = Priority.HIGH,
    ) -> Coroutine[Any, Any, PredictResult]:
        """Run one request through the model's batcher, or answer it from the version's response cache.

        Cancelling the coroutine frees the request's place in the queue. An empty `output_filter` means every output.

        Raises:
            ServingError: with TensorFlow Serving's code and wording for the cause. Raised when awaited.
        """
        # A plain function saves the frame of an outer coroutine.
        if self._loaded.responses is None:
            return self._run(inputs, deadline, output_filter, priority)
        return self._recall_or_run(inputs, deadline, output_filter, priority)

    async def _recall_or_run(
        self, inputs: Tensors, deadline: Deadline, output_filter: tuple[str, ...], priority: Priority
    ) -> PredictResult:
        if input_bytes(inputs) >= LARGE_INPUT_BYTES:
            look_up = await asyncio.to_thread(self._find, inputs, output_filter)
        else:
            look_up = self._find(inputs, output_filter)
        if look_up is not None and look_up.outputs is not None:
            return self._recalled(look_up.outputs)
        result = await self._run(inputs, deadline, output_filter, priority)
        return result if look_up is None else self._kept(look_up, result)

    def _find(self, inputs: Tensors, output_filter: tuple[str, ...]) -> _LookUp | None:
        """Look up a request in the response cache of the version. None: it cannot have the response."""
        responses, monotonic_s = self._loaded.responses, self._clock.monotonic_s
        assert responses is not None, "the caller checks it"
        started_s = monotonic_s()
        key = responses.key(self.signature.name, output_filter, inputs)
        if key is None:
            return None
        outputs = responses.find(key)
        look_up_s = monotonic_s() - started_s
        if outputs is not None:
            responses.add_hit_s(look_up_s)
        return _LookUp(responses, key, outputs, look_up_s)

    def _recalled(self, outputs: Tensors) -> PredictResult:
        self.is_recalled = True
        return PredictResult(self._handle.servable_id, self.signature.name, outputs, "hit")

    def _kept(self, look_up: _LookUp, result: PredictResult) -> PredictResult:
        """Keep the result of a request whose response was not in the cache, and return it as such."""
        responses, key, _, look_up_s = look_up
        started_s = self._clock.monotonic_s()
        responses.store(key, result.outputs)
        responses.add_miss_s(look_up_s + self._clock.monotonic_s() - started_s)
        return PredictResult(result.servable, result.signature_name, result.outputs, "miss")

    async def _run(
        self, inputs: Tensors, deadline: Deadline, output_filter: tuple[str, ...], priority: Priority
    ) -> PredictResult:
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        task = self._make_task(inputs, deadline, output_filter, priority, future)
        self._submit(task)
        try:
            outcome = await future
        except asyncio.CancelledError:
            self._abandon(task)
            raise
        finally:
            self._ended(task)
        return self._result_of(task, outcome)

    def _submit(self, task: Task) -> None:
        """Queue a task, whose waiter gets an error at its deadline.

        Raises:
            DeadlineExceeded: it has passed.
            ServingError: as `Batcher.submit`.
        """
        remaining_s = task.deadline.at_s - self._clock.monotonic_s()
        if remaining_s <= 0:
            raise DeadlineExceeded(f"Deadline exceeded before request for {self._handle.servable_id} was queued")
        batcher = self._loaded.batcher
        batcher.submit(task)
        if remaining_s < math.inf:
            expire = partial(_expire, batcher, task, self._handle.servable_id)
            self._timers.of(task.future.get_loop()).start(task, remaining_s, expire)

    def _ended(self, task: Task) -> None:
        """Record that a task has left the batcher, or that its caller has given up."""
        if task.deadline.is_finite:
            self._timers.of(task.future.get_loop()).cancel(task)
        now_s = self._clock.monotonic_s()
        self._times += (TaskTimes(self._handle.servable_id, task.enqueued_s, task.runs, now_s),)

    def _result_of(self, task: Task, outcome: Outcome) -> PredictResult:
        if isinstance(outcome, ServingError):
            raise self._explained(outcome, task)
        return PredictResult(self._handle.servable_id, self.signature.name, outcome)

    def _make_task(
        self,
        inputs: Tensors,
        deadline: Deadline,
        output_filter: tuple[str, ...],
        priority: Priority,
        future: asyncio.Future[Outcome],
    ) -> Task:
        signature, batcher = self.signature, self._loaded.batcher
        rows = count_plain_rows(signature, inputs) if signature.name in batcher.options else 0
        if not rows:
            inputs, rows = self._check(inputs)
        return Task(
            signature_name=signature.name,
            output_names=choose_outputs(signature, output_filter),
            inputs=inputs,
            rows=rows or 1,
            deadline=deadline,
            future=future,
            shareable=rows > 0,
            priority=priority,
        )

    def _check(self, inputs: Tensors) -> tuple[Tensors, int]:
        """Return the inputs, with defaults, and their rows, or 0 rows for inputs that must run alone."""
        signature = self.signature
        matches = check_inputs(self._handle.servable_id, signature, inputs, self._shapes)
        if signature.ragged_inputs:
            check_row_splits(signature, with_defaults(signature, inputs))
        # Some inputs run alone. With lenient shapes, the model decides on [3] for (None, 1). An empty batch has no row
        # to pad with. A default has its own number of rows.
        if len(inputs) != len(signature.inputs):
            return with_defaults(signature, inputs), 0
        if signature.name not in self._loaded.batcher.options:
            return inputs, 0
        if matches:
            return inputs, count_rows(inputs)
        check_batchable(inputs)
        return inputs, 0

    def _abandon(self, task: Task) -> None:
        # A host that watches deadlines itself cancels the expired request, with a timer that may fire slightly early.
        expired = task.deadline.expired(self._clock.monotonic_s() + EARLY_S)
        self._loaded.batcher.discard(task, "expired" if expired else "cancelled")

    def _explained(self, error: ServingError, task: Task) -> ServingError:
        """Return a copy of the task's error, to be raised."""
        if not isinstance(error, InvalidArgument) or task.shareable or matches_shapes(self.signature, task.inputs):
            return error.copy()
        # With lenient shapes, the model refused one that its signature does not guarantee: name the shapes first.
        described = describe_shapes(self._handle.servable_id, self.signature, task.inputs)
        return InvalidArgument(f"{described} ({error.message})")


class AcquiredVersion(_Acquired):
    """One version, held for a request that finds and runs its signatures itself."""

    __slots__ = ()

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """Every signature by name."""
        return self._loaded.servable.signatures

    @property
    def ensemble(self) -> Ensemble | None:
        """The steps of an ensemble, or None for any other version."""
        return None

    @property
    def precision(self) -> Precision | None:
        """The version's tolerance, or None if it is unknown."""
        return self._loaded.precision

    @property
    def evaluation(self) -> Mapping[str, object] | None:
        """The version's metrics on labelled rows as JSON, or None if it has none."""
        return self._loaded.evaluation

    def batching(self, signature_name: str) -> BatchingOptions | None:
        """Return how requests for a signature share batches, or None if they run one by one."""
        return self._loaded.batcher.options.get(signature_name)

    @property
    def default_rows(self) -> int:
        """Maximum number of rows in a batch of a signature whose exporter has checked no sizes."""
        return self._loaded.batcher.default_rows

    @property
    def has_cache(self) -> bool:
        """Whether the version has a response cache."""
        return self._loaded.responses is not None

    async def predict(
        self,
        signature: Signature,
        inputs: Tensors,
        deadline: Deadline,
        output_filter: tuple[str, ...] = (),
        priority: Priority = Priority.HIGH,
    ) -> PredictResult:
        """Run one of this version's signatures like `AcquiredModel.predict`. Several calls may be awaited at a time."""
        model = AcquiredModel(self._handle, self._loaded, signature, self._clock, self._timers, self._shapes)
        try:
            result = await model.predict(inputs, deadline, output_filter, priority)
        finally:
            self._times += model.times
        self.is_recalled = result.cache == "hit"
        return result


def _expire(batcher: Batcher, task: Task, servable_id: ServableId) -> None:
    """Answer a request whose deadline has passed, even if the device is busy with another batch for long."""
    if task.future.done():
        return
    batcher.discard(task, "expired")
    settle(task.future, DeadlineExceeded(f"Deadline exceeded while waiting for {servable_id}"))
