"""Task: one request in the batcher, or a part of one that is run in several batches; and what becomes of it."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from tpuserve_server.core.deadline import Deadline
from tpuserve_server.core.errors import FailedPrecondition, ResourceExhausted, ServingError
from tpuserve_server.core.priority import Priority
from tpuserve_server.core.types import Tensors

logger = logging.getLogger(__name__)

# What becomes of a task. A value either way: an exception set on a future would, through its traceback, hold the frames
# of everything that awaits it, and they the future.
Outcome: TypeAlias = Tensors | ServingError


class Whole:
    """A request that is run in parts: collects their outcomes. Any thread may hand one in; `_lock` guards the rest."""

    __slots__ = ("_failed", "_lock", "_outputs", "_pending_rows")

    def __init__(self, rows: int) -> None:
        """Nothing of its `rows` has been run yet."""
        self._lock = threading.Lock()
        # By their first row: parts are cut further while they wait, and come back in any order.
        self._outputs: dict[int, Tensors] = {}
        self._pending_rows = rows
        self._failed = False

    @property
    def failed(self) -> bool:
        """Whether a part has failed or the request was given up, so that the others need not run."""
        return self._failed

    def give_up(self) -> None:
        """Nobody waits any more; what parts come back is let go."""
        with self._lock:
            self._failed = True
            self._outputs.clear()

    def add(self, start: int, rows: int, outcome: Outcome) -> Outcome | None:
        """The request's outcome when the part of `rows` from `start` decides it: first failure or last part."""
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


@dataclass(slots=True, eq=False)
class Task:
    """One request in the queue. Its future belongs to the event loop that made it and is only completed there.

    `shareable` is True for rows that may stand in a batch beside others: their signature is batched and every array has
    `rows` rows of its shape. Others run alone, as they came, and count as one row.
    """

    signature_name: str
    output_names: tuple[str, ...]
    inputs: Tensors
    rows: int
    deadline: Deadline
    future: asyncio.Future[Outcome]
    shareable: bool
    enqueued_s: float = field(default=0.0)
    priority: Priority = field(default=Priority.HIGH)
    # The rest is the queue's. What its sequences are padded to, where they are (core/sequences.py).
    lengths: tuple[int, ...] = field(default=())
    # The `Batch` that the task waits in; None once it has left the queue. Its type is above this module.
    batch: object | None = field(default=None)
    # When it will have been answered by what is known, where an objective asks; else 0.
    predicted_s: float = field(default=0.0)
    # Set on a request that was split and on its parts, which share its future, and of which `start` is the first row.
    whole: Whole | None = field(default=None)
    start: int = field(default=0)

    def split(self, sizes: Sequence[int]) -> list["Task"]:
        """Parts of `sizes` rows, views of this task's arrays, which is itself never run. A part can be split again."""
        if self.whole is None:
            self.whole = Whole(self.rows)
        parts = []
        start = 0
        for size in sizes:
            rows = {name: array[start : start + size] for name, array in self.inputs.items()}
            part = Task(self.signature_name, self.output_names, rows, size, self.deadline, self.future, self.shareable)
            part.enqueued_s, part.priority = self.enqueued_s, self.priority
            # What was predicted of the request is told of its last part.
            part.predicted_s = self.predicted_s if start + size == self.rows else 0.0
            part.lengths, part.whole, part.start = self.lengths, self.whole, self.start + start
            parts.append(part)
            start += size
        return parts


def join_rows(parts: Sequence[Tensors]) -> Tensors:
    """The outputs of a request's parts, one after the other.

    Raises:
        FailedPrecondition: an output's rows differ in shape from part to part.
        ResourceExhausted: there is no memory for all of them.
    """
    try:
        return {name: np.concatenate([outputs[name] for outputs in parts]) for name in parts[0]}
    except ValueError as error:
        raise FailedPrecondition(
            "The request was run in parts, because enable_large_batch_splitting is on, and rows of an output differ in "
            "shape from part to part"
        ) from error
    except MemoryError as error:
        raise ResourceExhausted("There is no memory to join the parts of the response") from error


def complete(outcomes: Sequence[tuple[Task, Outcome]]) -> None:
    """Hand results to their futures, waking each event loop once. Callable from any thread."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Outcome], Outcome]]] = {}
    for task, outcome in outcomes:
        final = outcome if task.whole is None else task.whole.add(task.start, task.rows, outcome)
        if final is not None:
            by_loop.setdefault(task.future.get_loop(), []).append((task.future, final))
    for loop, share in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, share)
        except RuntimeError:
            # The loop has closed: its callers are gone, and nobody is left to tell.
            logger.warning("Results of %d requests came after their event loop had closed", len(share))


def _settle(share: Sequence[tuple[asyncio.Future[Outcome], Outcome]]) -> None:
    for future, outcome in share:
        if not future.done():
            future.set_result(outcome)
