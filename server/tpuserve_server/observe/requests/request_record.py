"""RequestRecord: everything known about one request that has ended. Watchers keep it, export it or log it."""

import heapq
import itertools
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from tpuserve_server.core.terms.batch_run import TaskTimes
from tpuserve_server.core.terms.errors import Code
from tpuserve_server.observe.requests.stages import Stage, stages_of
from tpuserve_server.observe.requests.trace_context import TraceContext, TraceHeaders

MOST_ERROR_CHARACTERS: Final = 200


class RequestRecord(NamedTuple):
    """One request. Times are those of `Clock.monotonic_s`, except `ended_unix_s`, which counts from 1970.

    `model` is empty if the request named no existing model. `version` is None and `signature` is empty if the server
    found none. The record holds no version in memory, and nothing that a client can make long.
    """

    protocol: str
    method: str
    model: str
    version: int | None
    signature: str
    code: Code
    started_s: float
    received_s: float
    ended_s: float
    ended_unix_s: float
    is_cached: bool
    times: tuple[TaskTimes, ...]
    # Empty: the request has no valid x-request-id.
    request_id: str = ""
    # Trace of the client, also if this server does not trace the request. Empty without a valid traceparent.
    client_trace_id: str = ""
    # None: the request is not traced.
    trace: TraceContext | None = None
    # The first characters of the message that a failed request got, up to `MOST_ERROR_CHARACTERS`. Clients can put any
    # text into it. Empty for a success, a cancelled task and an unexpected error, whose traceback is in the log.
    error: str = ""
    # Name of the identified client. Empty for an anonymous one.
    client: str = ""

    @property
    def latency_s(self) -> float:
        """Duration between the arrival and the response, without its transport."""
        return self.ended_s - self.started_s

    @property
    def stages(self) -> list[Stage]:
        """The stages of the request, in order, and their total."""
        return stages_of(self, self.ended_s)


class RequestWatcher(Protocol):
    """Gets the requests that it wants, at their end. Runs on the event loop: cheap, never blocks, never raises."""

    def wants(self, latency_s: float, now_s: float, code: Code) -> bool:
        """Return whether to build the record of a request for `watch`. Called for every request."""
        ...

    def watch(self, record: RequestRecord) -> None:
        """Take the record of a request."""
        ...


class Tracing(Protocol):
    """Decides which requests are traced, and exports them. Runs on the event loop, like a watcher."""

    def sample(self, headers: TraceHeaders | None, latency_s: float) -> TraceContext | None:
        """Return the identifiers of the span of a request that has ended, or None for one that is not traced."""
        ...

    def export(self, record: RequestRecord) -> None:
        """Export a request whose `trace` is set, later and on another thread."""
        ...


@dataclass(frozen=True, slots=True)
class Observers:
    """The parts that record requests at their end. `tracing` is None if the server traces no requests."""

    watchers: tuple[RequestWatcher, ...] = ()
    tracing: Tracing | None = None


NO_OBSERVERS = Observers()


WINDOW_S = 600.0
_PERIOD_S = 60.0
_MOST_PER_PERIOD = 20
# The current minute is in addition to the earlier ones.
MOST_KEPT = _MOST_PER_PERIOD * (int(WINDOW_S / _PERIOD_S) + 1)

_Ranked = tuple[float, int, RequestRecord]


class SlowRequests:
    """Keeps the slowest requests of each minute, for ten minutes. The event loop's thread owns it."""

    def __init__(self) -> None:
        """Start without requests."""
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
