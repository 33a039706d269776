"""Task: one request in the batcher, or a part of one that runs in several batches, and its outcome."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from tpuserve_server.core.terms.batch_run import BatchRun
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import FailedPrecondition, ResourceExhausted, ServingError, counted
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import Tensors

logger = logging.getLogger(__name__)

# The outcome of a task. Errors are values too, to avoid a reference cycle. The traceback of an exception that is set on
# a future would hold the frames that await it, and these frames hold the future.
Outcome: TypeAlias = Tensors | ServingError


class Waiter(Protocol):
    """Waits for the outcome of a task: an asyncio.Future, or an object that goes on when the outcome arrives."""

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop, whose thread owns the waiter."""
        ...

    def done(self) -> bool:
        """Return whether it has an outcome or has given up. May be called on any thread."""
        ...

    def cancelled(self) -> bool:
        """Return whether it has given up. May be called on any thread."""
        ...

    def set_result(self, outcome: Outcome, /) -> Callable[[], None] | None:
        """Take the outcome, once and on the event loop. Must not raise.

        A function that it returns is called once, when all waiters of the batch have taken theirs.
        """
        ...


class SplitRequest:
    """A request that runs in parts. Collects their outcomes, from any thread. `_lock` guards all changes."""

    __slots__ = ("_failed", "_lock", "_outputs", "_pending_rows", "runs")

    def __init__(self, rows: int) -> None:
        """Wait for outcomes of all `rows`."""
        self._lock = threading.Lock()
        # By first row: parts may be cut further while they wait, and end in any order.
        self._outputs: dict[int, Tensors] = {}
        self._pending_rows = rows
        self._failed = False
        # The batches that ran parts, in the order of their start. Device threads append to it.
        self.runs: list[BatchRun] = []

    @property
    def failed(self) -> bool:
        """Whether a part has failed or the caller has given up, so that the other parts need not run."""
        return self._failed

    def give_up(self) -> None:
        """Record that the caller has given up, and drop all outputs."""
        with self._lock:
            self._failed = True
            self._outputs.clear()

    def add(self, start: int, rows: int, outcome: Outcome) -> Outcome | None:
        """Add the outcome of the part of `rows` from `start`, and return the request's outcome if this decides it.

        The first failure or the last part decides it. Return None otherwise.
        """
        with self._lock:
            if self._failed:
                return None
            if isinstance(outcome, ServingError):
                return self._fail(outcome)
            self._outputs[start] = outcome
            self._pending_rows -= rows
            if self._pending_rows:
                return None
            try:
                return join_rows([outputs for _, outputs in sorted(self._outputs.items())])
            except ServingError as error:
                return self._fail(error.copy())

    def _fail(self, error: ServingError) -> ServingError:
        self._failed = True
        self._outputs.clear()
        return error


class Task:
    """One request in the queue. Its future belongs to the event loop that made it and is completed only there.

    `shareable`: the task may share a batch with others, because its signature has batching and every array has `rows`
    rows of the signature's shape. Other tasks run alone and unchanged, and count as one row in the queue.
    """

    __slots__ = (
        "batch", "deadline", "enqueued_s", "future", "inputs", "lengths", "order_s", "output_names", "predicted_s",
        "priority", "rows", "run", "shareable", "signature_name", "split_request", "start",
    )  # fmt: skip

    def __init__(
        self,
        signature_name: str,
        output_names: tuple[str, ...],
        inputs: Tensors,
        rows: int,
        deadline: Deadline,
        future: asyncio.Future[Outcome],
        shareable: bool,
        enqueued_s: float = 0.0,
        priority: Priority = Priority.HIGH,
    ) -> None:
        """Store the facts about a request. The queue sets the other fields."""
        self.signature_name = signature_name
        self.output_names = output_names
        self.inputs = inputs
        self.rows = rows
        self.deadline = deadline
        # Callers that need no future have another Waiter here. The batcher uses only the methods of that.
        self.future = future
        self.shareable = shareable
        self.enqueued_s = enqueued_s
        self.priority = priority
        # The lengths that its sequences are padded to (sequences.py).
        self.lengths: tuple[int, ...] = ()
        # The `Batch` that the task waits in, or None once it has left the queue. This module cannot import its type.
        self.batch: object | None = None
        # Predicted time of its response if its signature has an objective, else 0.
        self.predicted_s = 0.0
        # Time by which the queue orders tasks (BatchPolicy.order_s).
        self.order_s = 0.0
        # Set on a split request and on its parts. The parts share its future, and `start` is a part's first row.
        self.split_request: SplitRequest | None = None
        self.start = 0
        # The batch that the task left the queue with.
        self.run: BatchRun | None = None

    @property
    def runs(self) -> tuple[BatchRun, ...]:
        """The batches that ran the request so far: one, or those of its parts."""
        if self.split_request is not None:
            return tuple(self.split_request.runs)
        return () if self.run is None else (self.run,)

    def split(self, sizes: Sequence[int]) -> list["Task"]:
        """Return parts of `sizes` rows, as views of this task's arrays. A part can be split again.

        The task itself never runs after this.
        """
        if self.split_request is None:
            self.split_request = SplitRequest(self.rows)
        parts = []
        start = 0
        for size in sizes:
            rows = {name: array[start : start + size] for name, array in self.inputs.items()}
            part = Task(self.signature_name, self.output_names, rows, size, self.deadline, self.future, self.shareable)
            part.enqueued_s, part.order_s, part.priority = self.enqueued_s, self.order_s, self.priority
            # The prediction is for the whole request, so only its last part carries it.
            part.predicted_s = self.predicted_s if start + size == self.rows else 0.0
            part.lengths, part.split_request, part.start = self.lengths, self.split_request, self.start + start
            parts.append(part)
            start += size
        return parts


def share_run(tasks: Sequence[Task], run: BatchRun) -> None:
    """Record that `tasks` leave the queue together."""
    for task in tasks:
        task.run = run


def join_rows(parts: Sequence[Tensors]) -> Tensors:
    """Join the outputs of a request's parts, in order.

    Raises:
        FailedPrecondition: rows of an output differ in shape from part to part.
        ResourceExhausted: the memory does not suffice.
    """
    try:
        return {name: np.concatenate([outputs[name] for outputs in parts]) for name in parts[0]}
    except ValueError as error:
        raise FailedPrecondition(
            "The server ran the request in parts (enable_large_batch_splitting), and the parts have rows of different "
            "shapes in an output"
        ) from error
    except MemoryError as error:
        raise ResourceExhausted("The server has too little memory to join the parts of the response") from error


def complete_batch(
    tasks: Sequence[Task],
    outcomes: Sequence[Outcome],
    sent: Callable[[], object],
    running: asyncio.AbstractEventLoop | None = None,
) -> None:
    """Call `complete` for the tasks of a batch with their outcomes. Cheaper for whole requests of one event loop.

    `running` is the running event loop of this thread, if any.
    """
    loop = tasks[0].future.get_loop()
    for task in tasks:
        if task.split_request is not None or task.future.get_loop() is not loop:
            complete(list(zip(tasks, outcomes, strict=True)), sent)
            return
    if loop is running:
        _settle_batch(tasks, outcomes, sent)
        return
    try:
        loop.call_soon_threadsafe(_settle_batch, tasks, outcomes, sent)
    except RuntimeError:
        _warn_closed(len(tasks))


def complete(outcomes: Sequence[tuple[Task, Outcome]], sent: Callable[[], object] | None = None) -> None:
    """Set the results of futures, waking each event loop once. Callable from any thread.

    Each loop calls `sent` after the callers have resumed, which usually encode and send their responses at once.
    """
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Waiter, Outcome]]] = {}
    for task, outcome in outcomes:
        final = outcome if task.split_request is None else task.split_request.add(task.start, task.rows, outcome)
        if final is not None:
            by_loop.setdefault(task.future.get_loop(), []).append((task.future, final))
    for loop, share in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, share, sent)
        except RuntimeError:
            _warn_closed(len(share))


def settle(waiter: Waiter, outcome: Outcome) -> None:
    """Give a waiter its outcome, on its event loop."""
    then = waiter.set_result(outcome)
    if then is not None:
        then()


def _warn_closed(requests: int) -> None:
    """Log that the event loop of some requests has closed, so that their callers no longer wait."""
    logger.warning("The event loop of %s closed before the results arrived", counted(requests, "request"))


def _settle_batch(tasks: Sequence[Task], outcomes: Sequence[Outcome], sent: Callable[[], object]) -> None:
    rest: list[Callable[[], None]] = []
    for task, outcome in zip(tasks, outcomes, strict=True):
        waiter: Waiter = task.future
        if not waiter.done() and (then := waiter.set_result(outcome)) is not None:
            rest.append(then)
    for then in rest:
        then()
    # Behind the callbacks of the futures, which are in the same line.
    tasks[0].future.get_loop().call_soon(sent)


def _settle(share: Sequence[tuple[Waiter, Outcome]], sent: Callable[[], object] | None) -> None:
    for waiter, outcome in share:
        if not waiter.done():
            settle(waiter, outcome)
    if sent is not None:
        # Behind the callbacks of the futures, which are in the same line.
        share[0][0].get_loop().call_soon(sent)


class QueueDepth(NamedTuple):
    """Waiting requests and their rows, without padding. A request in parts counts once for each part that waits."""

    requests: int = 0
    rows: int = 0

    def plus(self, other: "QueueDepth") -> "QueueDepth":
        """Return the sum of both."""
        return QueueDepth(self.requests + other.requests, self.rows + other.rows)
