"""Figures of the whole server, read when a client requests the page: queues, budgets, state, log."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tpuserve_server.core.batching.demand import DemandTotals
from tpuserve_server.core.batching.device_share import BusyTimes, DeviceShare
from tpuserve_server.core.batching.task import QueueDepth
from tpuserve_server.core.models.residency import Residency
from tpuserve_server.core.serving.budgets import Budgets
from tpuserve_server.core.serving.sending import CUT_REASONS
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.server_state import Build, CertificateStatus, ServerState, Traffic
from tpuserve_server.core.terms.types import ServableId


@dataclass(frozen=True, slots=True)
class ServerParts:
    """The parts of a server that have figures."""

    service: InferenceService
    residency: Residency
    budgets: Budgets
    build: Build
    # Events that the log of the process has dropped.
    dropped_events: Callable[[], int]
    traffic: Traffic
    max_connections: int
    # None without TLS.
    certificates: Callable[[], CertificateStatus | None]
    device: DeviceShare


class ServerMeasurements:
    """Reads the parts of the server. Thread-safe: the server sets its parts before it opens its ports."""

    def __init__(self) -> None:
        """Start without parts, and so without their figures."""
        self._parts: ServerParts | None = None
        self._in_flight: list[tuple[str, Callable[[], int]]] = []

    # Called by the parts.

    def server_built(self, parts: ServerParts) -> None:
        """Read these parts from now on."""
        self._parts = parts

    def protocol_served(self, *, protocol: str, in_flight: Callable[[], int]) -> None:
        """Record a front-end of a protocol. `in_flight` returns the number of its requests that are not answered."""
        self._in_flight.append((protocol, in_flight))

    # Read by the metrics page.

    def in_flight(self) -> Mapping[str, int]:
        """Return the number of requests that are not answered, by protocol."""
        counts: Counter[str] = Counter()
        for protocol, count in self._in_flight:
            counts[protocol] += count()
        return counts

    def queued(self) -> Mapping[ServableId, QueueDepth]:
        """Return the requests that wait in the queue of each version that serves."""
        return {} if self._parts is None else self._parts.service.queued()

    def is_starting(self) -> bool:
        """Return whether the models of the start still load."""
        return self._parts is None or self._parts.service.state() is ServerState.STARTING

    def demand(self) -> Mapping[ServableId, DemandTotals]:
        """Return the device time that requests for each loaded version have needed."""
        return {} if self._parts is None else self._parts.service.demand()

    def refused_unread(self) -> int:
        """Return the number of requests that were refused for lack of capacity before their model was known."""
        if self._parts is None:
            return 0
        refused = self._parts.traffic.refused
        return refused["too_late"] + refused["rate"] + self._parts.budgets.receiving.refusals

    def busy_times(self) -> BusyTimes:
        """Return the time in which models used the device."""
        return BusyTimes(0.0, 0.0) if self._parts is None else self._parts.device.busy_times()

    def states(self) -> Mapping[ServerState, bool]:
        """Return for each state whether the server is in it."""
        if self._parts is None:
            return {}
        current = self._parts.service.state()
        return {state: state is current for state in ServerState}

    def available(self) -> Mapping[str, bool]:
        """Return for each configured model whether one of its versions is AVAILABLE or loads at a request."""
        if self._parts is None:
            return {}
        service = self._parts.service
        states = service.states()
        return {name: name in states and states[name].answers for name in service.models()}

    def build(self) -> Build | None:
        """Return the versions, or None without parts."""
        return None if self._parts is None else self._parts.build

    def configuration(self) -> str:
        """Return the hash of the model configuration in force, or "" without one or without parts."""
        return "" if self._parts is None else self._parts.service.configuration_sha256()

    def requests(self) -> Mapping[str, int]:
        """Return the number of requests by version of HTTP."""
        return {} if self._parts is None else dict(self._parts.traffic.requests)

    def refused(self) -> Mapping[str, int]:
        """Return the number of requests that were refused before their message was read, by reason."""
        if self._parts is None:
            return {}
        refused = {str(reason): count for reason, count in self._parts.traffic.refused.items()}
        return {**refused, "message_size": self._parts.budgets.receiving.oversized}

    def max_connections(self) -> int | None:
        """Return the number of client connections that the server accepts, or None without parts."""
        return None if self._parts is None else self._parts.max_connections

    def budget_bytes(self) -> Mapping[tuple[str, str], int]:
        """Return the bytes of each budget, by its name and their kind."""
        if self._parts is None:
            return {}
        budgets = self._parts.budgets
        return {
            ("receiving", "in_use"): budgets.receiving.held_bytes,
            ("receiving", "limit"): budgets.receiving.total_bytes,
            ("sending", "in_use"): budgets.sending.held_bytes,
            ("sending", "limit"): budgets.sending.total_bytes,
            ("decoded", "limit"): budgets.decoded.size_bytes,
            ("response", "limit"): budgets.response.size_bytes,
        }

    def budget_refusals(self) -> Mapping[str, int]:
        """Return the number of requests that each budget has refused."""
        if self._parts is None:
            return {}
        budgets = self._parts.budgets
        return {
            "receiving": budgets.receiving.refusals,
            "decoded": budgets.decoded.refusals,
            "response": budgets.response.refusals,
            "sending": budgets.sending.cuts["memory"],
        }

    def model_memory(self) -> Mapping[ServableId, int]:
        """Return the bytes of each version that is loaded."""
        return {} if self._parts is None else self._parts.residency.memory_bytes()

    def on_demand_loads(self) -> int | None:
        """Return how many loads requests have begun, or None without parts."""
        return None if self._parts is None else self._parts.residency.loads()

    def on_demand_unloads(self) -> Mapping[str, int]:
        """Return how many models that load on demand have left, by reason."""
        return {} if self._parts is None else self._parts.residency.unloads()

    def cut_responses(self) -> Mapping[str, int]:
        """Return the number of responses that were cut because their clients did not read them, by reason."""
        if self._parts is None:
            return {}
        cuts = self._parts.budgets.sending.cuts
        return {reason: cuts[reason] for reason in CUT_REASONS}

    def certificates(self) -> CertificateStatus | None:
        """Return the status of the certificates, or None without TLS or without parts."""
        return None if self._parts is None else self._parts.certificates()

    def dropped_events(self) -> int | None:
        """Return the number of events that the log has dropped, or None without parts."""
        return None if self._parts is None else self._parts.dropped_events()
