"""DeviceQueue: the batches that the device threads of one batcher have, and the predictions that follow from them."""

import itertools
import math
from collections import deque
from collections.abc import Sequence

from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.terms.deadline import Clock, Deadline
from tpuserve_server.core.terms.errors import DeadlineExceeded, ServingError, TooLate
from tpuserve_server.core.terms.types import ServableId

# Weight of the latest delay in the running mean. The excess of a delay over the mean is limited to this many standard
# deviations, or to the bound in seconds if that is larger. One long pause must not dominate the forecast.
_WEIGHT = 0.05
_MOST_SPREADS = 4.0
_LEAST_BOUND_S = 1e-3
# Weights and factor of TCP's retransmission timer (RFC 6298, 2.3): smoothed mean plus four mean deviations.
_MEAN_WEIGHT = 1 / 8
_DEVIATION_WEIGHT = 1 / 4
_DEVIATIONS = 4.0
# Smallest retry hint, in seconds.
_LEAST_RETRY_S = 0.001
# Part of a request's time that is left for the network and the client, up to this many seconds. The queue stays full
# without it, but a client on a busy machine would get the response late.
_MARGIN, _MOST_MARGIN_S = 0.2, 0.2


class TakenBatch:
    """A batch that a device thread has taken. The device has it since `begun_s` if it is the thread's oldest."""

    __slots__ = ("begun_s", "is_hung", "run_s", "tasks")

    def __init__(self, tasks: Sequence[Task], begun_s: float, run_s: float) -> None:
        """Record a batch that should run for `run_s`, or 0 if that is unknown."""
        self.tasks = tasks
        self.begun_s = begun_s
        self.run_s = run_s
        self.is_hung = False


class DeviceQueue:
    """The only record of what the device threads of a batcher have. Predictions and the watchdog read it.

    A thread's batches run in the order in which it took them, even if the event loop runs them instead of the thread.
    Each begins at the end of the one before, so the error of one prediction does not pass to the next.

    The batcher's lock guards it, except `run_again`.
    """

    def __init__(self, threads: int, in_flight: int = 1) -> None:
        """Record the batches of `threads` idle device threads, numbered from 0, with up to `in_flight` each."""
        self.threads = threads
        # Whether the device runs one batch at a time.
        self.runs_one = threads == 1 and in_flight == 1
        self._taken: list[deque[TakenBatch]] = [deque() for _ in range(threads)]
        # When the latest batch of each thread that has ended was expected to end.
        self._expected_s = [-math.inf] * threads
        # Mean and variance of the time from the expected to the actual begin of a batch.
        self._delay_s = self._variance = 0.0

    # Events of a batch.

    def take(self, thread: int, tasks: Sequence[Task], ready_s: float, now_s: float, run_s: float) -> None:
        """Record that a thread has taken a batch that was ready at `ready_s` and should run for `run_s`."""
        taken = self._taken[thread]
        if not taken:
            self._learn(now_s - max(self._expected_s[thread], ready_s))
        taken.append(TakenBatch(tasks, now_s, run_s))

    def drop(self, thread: int) -> None:
        """Forget the batch that a thread took last, because none of its tasks was alive."""
        self._taken[thread].pop()

    def end(self, thread: int, now_s: float) -> TakenBatch:
        """Remove and return a thread's oldest batch, which has been answered. The next one begins now."""
        taken = self._taken[thread]
        ended = taken.popleft()
        self._expected_s[thread] = expected_s = ended.begun_s + ended.run_s
        if taken:
            self._learn(now_s - expected_s)
            taken[0].begun_s = now_s
        return ended

    def run_again(self, thread: int, now_s: float) -> None:
        """Record that a thread runs a part of its oldest batch again. Only that thread calls this, without the lock."""
        self._taken[thread][0].begun_s = now_s

    def has_batch(self, thread: int) -> bool:
        """Return whether a thread has taken a batch that has not been answered."""
        return bool(self._taken[thread])

    # When the device will be free.

    @property
    def is_idle(self) -> bool:
        """Whether a device thread has no batch."""
        return not all(self._taken)

    @property
    def spread_s(self) -> float:
        """Standard deviation of the time from the expected to the actual begin of a batch."""
        return math.sqrt(self._variance)

    def start_s(self, now_s: float, work_s: float) -> float:
        """Predict when a batch begins that runs after waiting batches of `work_s`, in seconds of one device.

        Several threads share the work as if batches could be cut: each takes the next batch when it is free.
        """
        delay_s = self._delay_s if self._delay_s > 0.0 else 0.0
        if self.threads == 1:
            return self.free_s(now_s) + work_s + delay_s
        frees_s = sorted(_free_s(taken, now_s) for taken in self._taken)
        total_s = work_s
        for count, next_s in enumerate(frees_s[1:], 1):
            total_s += frees_s[count - 1]
            if total_s / count <= next_s:
                return total_s / count + delay_s
        return (total_s + frees_s[-1]) / self.threads + delay_s

    def free_s(self, now_s: float) -> float:
        """Predict when the first device thread will have run all its batches."""
        return min([_free_s(taken, now_s) for taken in self._taken])

    def _learn(self, delay_s: float) -> None:
        off_s = delay_s - self._delay_s
        if off_s > _LEAST_BOUND_S and off_s * off_s > _MOST_SPREADS * _MOST_SPREADS * self._variance:
            off_s = max(_MOST_SPREADS * self.spread_s, _LEAST_BOUND_S)
        self._delay_s += _WEIGHT * off_s
        self._variance = (1 - _WEIGHT) * (self._variance + _WEIGHT * off_s * off_s)

    # Batches that hang.

    def mark_hung(self, now_s: float, limit_s: float) -> tuple[list[TakenBatch], list[Task]]:
        """Mark the batches that have run for `limit_s`. Return the new ones, and the tasks of the batches behind."""
        hung: list[TakenBatch] = []
        behind: list[Task] = []
        for taken in self._taken:
            if taken and not taken[0].is_hung and now_s - taken[0].begun_s >= limit_s:
                first, *others = taken
                first.is_hung = True
                hung.append(first)
                behind += [task for one in others for task in one.tasks]
        return hung, behind

    def next_hung_s(self, now_s: float, limit_s: float) -> float:
        """Return the earliest time at which another batch may count as hung."""
        return min((one.begun_s for one in self._oldest(is_hung=False)), default=now_s) + limit_s

    def hung_since_s(self) -> float | None:
        """Return when the longest hung batch began, or None if none hangs."""
        return min((one.begun_s for one in self._oldest(is_hung=True)), default=None)

    def hung_threads(self) -> list[int]:
        """Return the threads whose batch hangs."""
        return [thread for thread, taken in enumerate(self._taken) if taken and taken[0].is_hung]

    def _oldest(self, *, is_hung: bool) -> list[TakenBatch]:
        return [taken[0] for taken in self._taken if taken and taken[0].is_hung is is_hung]


def _free_s(taken: deque[TakenBatch], now_s: float) -> float:
    """Return when a thread will have run its batches. The oldest ends now if it takes longer than expected."""
    if not taken:
        return now_s
    free_s = max(taken[0].begun_s + taken[0].run_s, now_s)
    for batch in itertools.islice(taken, 1, None):
        free_s += batch.run_s
    return free_s


class HostDelay:
    """Seconds to expect between the end of a batch and the last of its responses.

    Event loops record, and any thread reads. Both without a lock: a lost update is harmless.
    """

    __slots__ = ("_deviation_s", "_mean_s", "seconds")

    def __init__(self) -> None:
        """Start with no delay."""
        self._mean_s = self._deviation_s = 0.0
        self.seconds = 0.0

    def sent(self, clock: Clock, ended_s: float) -> None:
        """Record that the responses of a batch that ended at `ended_s` have been sent."""
        off_s = clock.monotonic_s() - ended_s - self._mean_s
        self._mean_s += _MEAN_WEIGHT * off_s
        self._deviation_s += _DEVIATION_WEIGHT * (abs(off_s) - self._deviation_s)
        self.seconds = self._mean_s + _DEVIATIONS * self._deviation_s


class DeadlineCheck:
    """The check of requests without an objective against their deadlines. The batcher's lock guards it.

    Unknown costs count as 0, so that a server that has measured nothing refuses nothing.
    """

    def __init__(self, servable_id: ServableId, device: DeviceQueue, host: HostDelay) -> None:
        """Predict for the batches behind those of `device`."""
        self.servable_id = servable_id
        self.device = device
        self._host = host

    @property
    def host_s(self) -> float:
        """Expected seconds from the end of a batch to its responses.

        It has no bound. After a pause of the host every request may seem late, but an idle device still runs batches,
        and they show within a few runs that the pause has ended.
        """
        return self._host.seconds

    def earliest_s(self, now_s: float, run_s: float) -> float:
        """Predict when the requests of a batch of `run_s` are answered if it is the next."""
        return self.device.free_s(now_s) + run_s + self._host.seconds

    def refusal(self, deadline: Deadline, now_s: float, finish_s: float) -> TooLate:
        """Return the error for a request that would be answered at `finish_s`, after its deadline."""
        retry_s = max(finish_s - deadline.at_s, _LEAST_RETRY_S)
        return TooLate(
            f"Servable {self.servable_id} would finish this request in {(finish_s - now_s) * 1000:.1f} ms, later than "
            f"the request's deadline in {deadline.remaining_s(now_s) * 1000:.1f} ms; retry in {retry_s * 1000:.0f} ms",
            retry_s,
        )

    def hopeless_error(self, deadline: Deadline, now_s: float) -> ServingError:
        """Return the error for a waiting request that cannot be answered by its deadline any more."""
        if deadline.expired(now_s):
            return DeadlineExceeded(f"Deadline exceeded while request for {self.servable_id} was queued")
        return TooLate(
            f"Servable {self.servable_id} cannot finish this request before its deadline in "
            f"{deadline.remaining_s(now_s) * 1000:.1f} ms; retry with a longer deadline",
            _LEAST_RETRY_S,
        )


def due_s(deadline: Deadline, now_s: float) -> float:
    """Return when a new request should be answered, so that its client gets the response by its deadline."""
    return deadline.at_s - min(_MARGIN * (deadline.at_s - now_s), _MOST_MARGIN_S)
