"""Queues for the simulation of overload. Each is a few lines of policy; batches are greedy, of one row per attempt."""

import heapq
import itertools
from collections import deque
from collections.abc import Iterator

from benchmarks.batching.overload import Attempt, Host, Timeline
from benchmarks.batching.simulation import Device
from tpuserve_server.core.batching.objective import HostAllowance

# Order of an attempt without a deadline, in seconds after its arrival.
PATIENCE_S = 1.0
_LEAST_HINT_S = 0.001
_PERCENTILE = 95.0


class FirstCome:
    """First come, first served, like the queue before this decision. Attempts leave at their deadline."""

    def __init__(self, timeline: Timeline, device: Device, host: Host, timeout_s: float) -> None:
        """Serve `device`. `timeout_s` is a typical deadline of a request."""
        self._timeline = timeline
        self._device = device
        self._host = host
        self._batch_s = device.cost_s(device.max_rows)
        self._free_s = 0.0
        self._busy = False
        self._queue: deque[Attempt] = deque()
        self._allowance = HostAllowance(timeout_s, _PERCENTILE)

    def refuses(self, attempt: Attempt) -> float | None:
        """Return None: the queue refuses nothing before decoding."""
        return None

    def submit(self, attempt: Attempt) -> float | None:
        """Queue the attempt."""
        self._add(attempt)
        if not self._busy:
            self._start()
        return None

    def answered(self, attempt: Attempt, *, late: bool) -> None:
        """Ignore the outcome."""

    def _add(self, attempt: Attempt) -> None:
        self._queue.append(attempt)

    def _take(self, now_s: float) -> list[Attempt]:
        taken: list[Attempt] = []
        while self._queue and len(taken) < self._device.max_rows:
            attempt = self._queue.popleft()
            if attempt.server_due_s > now_s:
                taken.append(attempt)
        return taken

    def _start(self) -> None:
        now_s = self._timeline.monotonic_s()
        taken = self._take(now_s)
        self._busy = bool(taken)
        if taken:
            self._free_s = now_s + self._device.cost_s(len(taken))
            self._timeline.at(self._free_s, self._finish, taken)

    def _finish(self, taken: list[Attempt]) -> None:
        # The device thread starts the next batch before the loop encodes.
        self._start()
        self._host.complete(taken)


class Predicted(FirstCome):
    """First come, first served, but refuses an attempt at once if its predicted finish is after its deadline.

    Time for the host is learned from late responses, as for a latency objective.
    """

    def refuses(self, attempt: Attempt) -> float | None:
        """Return the retry hint if the attempt would be late."""
        now_s = self._timeline.monotonic_s()
        if not self._busy:
            return None
        batches = self._rows_before(attempt) // self._device.max_rows + 1
        finish_s = max(self._free_s, now_s) + batches * self._batch_s + self._allowance.seconds
        late_s = finish_s - attempt.server_due_s
        return max(late_s, _LEAST_HINT_S) if late_s > 0 else None

    def answered(self, attempt: Attempt, *, late: bool) -> None:
        """Adjust the allowance."""
        self._allowance.record_latency(float("inf") if late else 0.0)

    def _rows_before(self, attempt: Attempt) -> int:
        return len(self._queue)


class EarliestDeadline(FirstCome):
    """Earliest deadline first. An attempt that cannot be in time is dropped before a batch, never run."""

    def __init__(self, timeline: Timeline, device: Device, host: Host, timeout_s: float) -> None:
        """See `FirstCome`."""
        super().__init__(timeline, device, host, timeout_s)
        self._heap: list[tuple[float, int, Attempt]] = []
        self._numbers = itertools.count()

    def answered(self, attempt: Attempt, *, late: bool) -> None:
        """Adjust the allowance."""
        self._allowance.record_latency(float("inf") if late else 0.0)

    def _add(self, attempt: Attempt) -> None:
        heapq.heappush(self._heap, (self._order_s(attempt), next(self._numbers), attempt))

    def _order_s(self, attempt: Attempt) -> float:
        return min(attempt.server_due_s, self._timeline.monotonic_s() + PATIENCE_S)

    def _take(self, now_s: float) -> list[Attempt]:
        taken: list[Attempt] = []
        finish_s = now_s + self._batch_s + self._allowance.seconds
        while self._heap and len(taken) < self._device.max_rows:
            _, _, attempt = heapq.heappop(self._heap)
            if attempt.server_due_s >= finish_s or (not taken and not self._heap):
                taken.append(attempt)
            elif attempt.server_due_s > now_s:
                self._host.drop(attempt, _LEAST_HINT_S)
        return taken


class PredictedEarliestDeadline(EarliestDeadline, Predicted):
    """Earliest deadline first, and refuses an attempt whose predicted finish is after its deadline."""

    def _rows_before(self, attempt: Attempt) -> int:
        order_s = self._order_s(attempt)
        return sum(other_s <= order_s for other_s, _, _ in self._heap)


class PredictedFirstCome(PredictedEarliestDeadline):
    """First come, first served, but refuses and drops attempts like `PredictedEarliestDeadline`."""

    def _order_s(self, attempt: Attempt) -> float:
        return self._timeline.monotonic_s()


class AdaptiveLifo(FirstCome):
    """Newest first while more than a batch waits, otherwise first come, first served."""

    def _take(self, now_s: float) -> list[Attempt]:
        taken: list[Attempt] = []
        for attempt in self._pop(len(self._queue) > self._device.max_rows):
            if attempt.server_due_s > now_s:
                taken.append(attempt)
            if len(taken) == self._device.max_rows:
                break
        while self._queue and self._queue[0].server_due_s <= now_s:
            self._queue.popleft()
        return taken

    def _pop(self, newest_first: bool) -> Iterator[Attempt]:
        while self._queue:
            yield self._queue.pop() if newest_first else self._queue.popleft()


class ControlledDelay(FirstCome):
    """CoDel for servers (Maurer, Fail at Scale, ACM Queue 13(8), 2015).

    If the queue has not been empty for an interval, attempts that have waited longer than the target are refused.
    Target and interval are one and four full batches.
    """

    _emptied_s = 0.0

    def _take(self, now_s: float) -> list[Attempt]:
        is_standing = now_s - self._emptied_s > 4 * self._batch_s
        taken: list[Attempt] = []
        while self._queue and len(taken) < self._device.max_rows:
            attempt = self._queue.popleft()
            if attempt.server_due_s <= now_s:
                continue
            if is_standing and now_s - attempt.sent_s > self._batch_s:
                self._host.drop(attempt, _LEAST_HINT_S)
            else:
                taken.append(attempt)
        if not self._queue:
            self._emptied_s = now_s
        return taken
