"""Interfaces between the end of a request and the parts that record it."""

from dataclasses import dataclass
from typing import Protocol

from tpuserve_server.core.terms.errors import Code
from tpuserve_server.observe.requests.request_record import RequestRecord
from tpuserve_server.observe.requests.trace_context import TraceContext, TraceHeaders


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
