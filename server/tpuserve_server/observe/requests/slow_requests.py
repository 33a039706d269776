"""SlowRequests: the slowest requests of each of the last minutes."""

import heapq
import itertools
from collections import deque

from tpuserve_server.core.terms.errors import Code
from tpuserve_server.observe.requests.request_record import RequestRecord

WINDOW_S = 600.0
_PERIOD_S = 60.0
_MOST_PER_PERIOD = 20
# The current minute is in addition to the earlier ones.
MOST_KEPT = _MOST_PER_PERIOD * (int(WINDOW_S / _PERIOD_S) + 1)

_Ranked = tuple[float, int, RequestRecord]


class SlowRequests:
    """Keeps the slowest requests of each minute, for ten minutes. The event loop's thread owns it."""

    def __init__(self, methods: frozenset[str]) -> None:
        """Keep requests of these methods. Others, such as the console's own and probes, would fill an idle minute."""
        self._methods = methods
        # Heaps with the fastest request first. The number makes entries with the same latency comparable.
        self._slowest: list[_Ranked] = []
        self._earlier: deque[list[_Ranked]] = deque(maxlen=int(WINDOW_S / _PERIOD_S))
        self._numbers = itertools.count()
        self._ends_s = 0.0
        # A request must be slower than this. 0 while there is room.
        self._least_s = 0.0

    def wants(self, latency_s: float, now_s: float, code: Code) -> bool:
        """Return whether a request that ends at `now_s` is among the slowest of the current minute."""
        return latency_s > self._least_s or now_s >= self._ends_s

    def watch(self, record: RequestRecord) -> None:
        """Keep a request that `wants` has chosen, in place of the fastest one if there is no room."""
        if record.method not in self._methods:
            return
        if record.ended_s >= self._ends_s:
            self._begin_period(record.ended_s)
        entry = (record.latency_s, next(self._numbers), record)
        if len(self._slowest) < _MOST_PER_PERIOD:
            heapq.heappush(self._slowest, entry)
        else:
            heapq.heappushpop(self._slowest, entry)
        if len(self._slowest) == _MOST_PER_PERIOD:
            self._least_s = self._slowest[0][0]

    def slowest(self, now_s: float, limit: int = _MOST_PER_PERIOD) -> list[RequestRecord]:
        """Return at most `limit` requests of the last ten minutes, the slowest first.

        Half of them are the slowest of all. The others are the slowest of each minute first: a burst within one minute
        would otherwise fill the list.
        """
        oldest_s = now_s - WINDOW_S
        periods = [[one for one in period if one[2].ended_s > oldest_s] for period in (*self._earlier, self._slowest)]
        ranked = sorted((one for period in periods for one in period), reverse=True)
        half = limit - limit // 2
        firsts = {max(period)[1] for period in periods if period}
        chosen = ranked[:half] + sorted(ranked[half:], key=lambda one: one[1] not in firsts)[: limit - half]
        return [record for _, _, record in sorted(chosen, reverse=True)]

    def _begin_period(self, now_s: float) -> None:
        if self._slowest:
            self._earlier.append(self._slowest)
        self._slowest = []
        self._ends_s = now_s + _PERIOD_S
        self._least_s = 0.0
