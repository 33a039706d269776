"""Figures of the whole server, read when a client requests the page: queues, budgets, state, log, processes."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tpuserve_server.core.batching.queue_depth import QueueDepth
from tpuserve_server.core.budgets.budgets import Budgets
from tpuserve_server.core.budgets.sending import CUT_REASONS
from tpuserve_server.core.build import Build
from tpuserve_server.core.certificate_status import CertificateStatus
from tpuserve_server.core.process_usage import ProcessUsage, process_usage
from tpuserve_server.core.server_state import ServerState
from tpuserve_server.core.service import InferenceService
from tpuserve_server.core.types import ServableId, State

# Budgets that all requests of a process share.
_SHARED: Final = ("receiving", "sending")


@dataclass(frozen=True, slots=True)
class ServerParts:
    """The parts of a server that have figures."""

    service: InferenceService
    budgets: Budgets
    build: Build
    # Events that the log of the process has dropped.
    dropped_events: Callable[[], int]
    # None without TLS.
    certificates: Callable[[], CertificateStatus | None]


class ServerShare(NamedTuple):
    """The present figures of one process, and what it counted since its last share."""

    in_flight: Mapping[str, int]
    # Bytes of the budgets that all requests share, by budget and kind.
    shared_bytes: Mapping[tuple[str, str], int]
    usage: ProcessUsage
    # New since the last share. The refusals are by budget.
    budget_refusals: Mapping[str, int]
    cut_responses: Mapping[str, int]
    dropped_events: int


class ServerMeasurements:
    """Reads the parts of the server, and adds those of its front-end processes.

    Thread-safe: the server sets its parts before it opens its ports, and `_lock` guards the figures of front-ends.
    """

    def __init__(self) -> None:
        """Start without parts, and so without their figures."""
        self._parts: ServerParts | None = None
        self._in_flight: list[tuple[str, Callable[[], int]]] = []
        self._lock = threading.Lock()
        # The last shares of processes that live, and the sums of all processes ever.
        self._front_ends: dict[int, ServerShare] = {}
        self._budget_refusals: Counter[str] = Counter()
        self._cut_responses: Counter[str] = Counter()
        self._dropped_events = 0
        self._ended_cpu_s = 0.0
        # Counts that the shares of this process have included.
        self._taken_refusals: Mapping[str, int] = {}
        self._taken_cuts: Mapping[str, int] = {}
        self._taken_events = 0

    # Called by the parts.

    def server_built(self, parts: ServerParts) -> None:
        """Read these parts from now on."""
        self._parts = parts

    def protocol_served(self, *, protocol: str, in_flight: Callable[[], int]) -> None:
        """Record a front-end of a protocol. `in_flight` returns the number of its requests that are not answered."""
        self._in_flight.append((protocol, in_flight))

    # Exchanged between the processes of a server.

    def take(self) -> ServerShare:
        """Return the share of this process, which only one thread at a time may take."""
        refusals, cuts, events = self.budget_refusals(), self.cut_responses(), self.dropped_events() or 0
        new_refusals, new_cuts = _new(refusals, self._taken_refusals), _new(cuts, self._taken_cuts)
        new_events = events - self._taken_events
        self._taken_refusals, self._taken_cuts, self._taken_events = refusals, cuts, events
        shared = {key: count for key, count in self.budget_bytes().items() if key[0] in _SHARED}
        return ServerShare(self.in_flight(), shared, process_usage(), new_refusals, new_cuts, new_events)

    def add(self, share: ServerShare, source: int) -> None:
        """Add the share of a front-end process, see Measurements.add."""
        with self._lock:
            self._front_ends[source] = share
            self._budget_refusals.update(share.budget_refusals)
            self._cut_responses.update(share.cut_responses)
            self._dropped_events += share.dropped_events

    def end_source(self, source: int) -> None:
        """Omit a process from gauges, see Measurements.end_source."""
        with self._lock:
            if (last := self._front_ends.pop(source, None)) is not None:
                self._ended_cpu_s += last.usage.cpu_s

    # Read by the metrics page.

    def usages(self) -> Sequence[ProcessUsage]:
        """Return the usage of each front-end process that lives."""
        return [front_end.usage for front_end in self._shares()]

    def cpu_s(self) -> float:
        """Return the CPU time of all front-end processes, including those that have ended. It never falls."""
        with self._lock:
            return self._ended_cpu_s + sum(front_end.usage.cpu_s for front_end in self._front_ends.values())

    def in_flight(self) -> Mapping[str, int]:
        """Return the number of requests that are not answered, by protocol, in all processes."""
        counts: Counter[str] = Counter()
        for protocol, count in self._in_flight:
            counts[protocol] += count()
        for front_end in self._shares():
            counts.update(front_end.in_flight)
        return counts

    def queued(self) -> Mapping[ServableId, QueueDepth]:
        """Return the requests that wait in the queue of each version that serves."""
        return {} if self._parts is None else self._parts.service.queued()

    def states(self) -> Mapping[ServerState, bool]:
        """Return for each state whether the server is in it."""
        if self._parts is None:
            return {}
        current = self._parts.service.state()
        return {state: state is current for state in ServerState}

    def available(self) -> Mapping[str, bool]:
        """Return for each configured model whether one of its versions is AVAILABLE."""
        if self._parts is None:
            return {}
        service = self._parts.service
        states = service.states()
        return {name: name in states and State.AVAILABLE in states[name].versions.values() for name in service.models()}

    def build(self) -> Build | None:
        """Return the versions, or None without parts."""
        return None if self._parts is None else self._parts.build

    def budget_bytes(self) -> Mapping[tuple[str, str], int]:
        """Return the bytes of each budget, by its name and their kind. Shared ones are the sum of all processes."""
        if self._parts is None:
            return {}
        budgets = self._parts.budgets
        shared = Counter(
            {
                ("receiving", "in_use"): budgets.receiving.held_bytes,
                ("receiving", "limit"): budgets.receiving.total_bytes,
                ("sending", "in_use"): budgets.sending.held_bytes,
                ("sending", "limit"): budgets.sending.total_bytes,
            }
        )
        for front_end in self._shares():
            shared.update(front_end.shared_bytes)
        return {
            **shared,
            ("decoded", "limit"): budgets.decoded.size_bytes,
            ("response", "limit"): budgets.response.size_bytes,
        }

    def budget_refusals(self) -> Mapping[str, int]:
        """Return the number of requests that each budget has refused, in all processes."""
        if self._parts is None:
            return {}
        budgets = self._parts.budgets
        own = {
            "receiving": budgets.receiving.refusals,
            "decoded": budgets.decoded.refusals,
            "response": budgets.response.refusals,
            "sending": budgets.sending.cuts["memory"],
        }
        with self._lock:
            return {budget: count + self._budget_refusals[budget] for budget, count in own.items()}

    def cut_responses(self) -> Mapping[str, int]:
        """Return the number of responses that were cut because their clients did not read them, by reason."""
        if self._parts is None:
            return {}
        cuts = self._parts.budgets.sending.cuts
        with self._lock:
            return {reason: cuts[reason] + self._cut_responses[reason] for reason in CUT_REASONS}

    def certificates(self) -> CertificateStatus | None:
        """Return the status of the certificates, or None without TLS or without parts."""
        return None if self._parts is None else self._parts.certificates()

    def dropped_events(self) -> int | None:
        """Return the number of events that the logs of all processes have dropped, or None without parts."""
        return None if self._parts is None else self._parts.dropped_events() + self._dropped_events

    def _shares(self) -> list[ServerShare]:
        with self._lock:
            return list(self._front_ends.values())


def _new(counts: Mapping[str, int], taken: Mapping[str, int]) -> Mapping[str, int]:
    return {name: count - taken.get(name, 0) for name, count in counts.items()}
