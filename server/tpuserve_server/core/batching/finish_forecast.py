"""FinishForecast: when a batcher expects to answer new requests, for another process that receives them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from tpuserve_server.core.batching.deadline_check import due_s, refusal
from tpuserve_server.core.batching.lane import PATIENCE_S
from tpuserve_server.core.deadline import Deadline
from tpuserve_server.core.priority import Priority
from tpuserve_server.core.types import ServableId

# The order of a waiting batch, and the expected seconds of all batches of its priority up to it.
Wait: TypeAlias = tuple[float, float]
# A longer queue is described by this many of its batches. A forecast is then too early by at most the work between two.
_MOST_WAITS = 64


@dataclass(frozen=True, slots=True)
class FinishForecast:
    """The expected work of a batcher's `devices` threads at `at_s`, as if no request arrived or ended later.

    `free_s` is when a thread is free, 0 if one is idle. `host_s` are the seconds from the end of a batch to its
    responses. By priority, `runs_s` has the expected seconds of a request of one row for each signature without a
    latency objective, and `waits` the waiting batches in their order. `shortest_s` are the seconds of the shortest
    signature that has run, 0 if none has or if one has an objective.

    At `at_s` it is never later than the batcher's own prediction. It gets too late if work ends sooner than expected.
    """

    servable_id: ServableId
    at_s: float
    devices: int
    free_s: float
    host_s: float
    runs_s: tuple[Mapping[str, float], Mapping[str, float]]
    shortest_s: float
    waits: tuple[tuple[Wait, ...], tuple[Wait, ...]]

    def check(self, signature_name: str, deadline: Deadline, priority: Priority, now_s: float) -> None:
        """Check whether a request that is not decoded yet would be in time. See `Backlog.check_deadline`.

        Raises:
            TooLate: a request of one row would be answered after its deadline.
        """
        run_s = self.runs_s[priority].get(signature_name)
        if run_s is None:
            return
        finish_s = self._finish_s(run_s, priority, deadline, now_s)
        if finish_s > due_s(deadline, now_s):
            raise refusal(self.servable_id, deadline, now_s, finish_s)

    def lateness_s(self, deadline: Deadline, now_s: float) -> float:
        """Return by how many seconds a request of high priority would miss its deadline. See `Backlog.lateness_s`."""
        if not self.shortest_s:
            return 0.0
        return max(self._finish_s(self.shortest_s, Priority.HIGH, deadline, now_s) - due_s(deadline, now_s), 0.0)

    def _finish_s(self, run_s: float, priority: Priority, deadline: Deadline, now_s: float) -> float:
        """Return when a request would be answered, or -inf if a thread is idle by now and would run it at once."""
        work_s = self._work_s(priority, min(now_s + PATIENCE_S, deadline.at_s))
        if priority:
            work_s += self._work_s(Priority.HIGH, math.inf)
        start_s = max(self.free_s, self.at_s) + work_s / self.devices
        return start_s + run_s + self.host_s if start_s > now_s else -math.inf

    def _work_s(self, priority: Priority, order_s: float) -> float:
        work_s = 0.0
        for until_s, seconds in self.waits[priority]:
            if until_s > order_s:
                break
            work_s = seconds
        return work_s


def waits(batches: Iterable[tuple[float, float]]) -> tuple[Wait, ...]:
    """Return the waits of batches, given their orders and expected seconds, in any order."""
    ordered = sorted(batches)
    found = list(zip((order_s for order_s, _ in ordered), accumulate(work_s for _, work_s in ordered), strict=True))
    step = math.ceil(len(found) / _MOST_WAITS)
    # From the end, so that the work of the whole queue is exact.
    return tuple(found[::-step][::-1]) if step > 1 else tuple(found)
