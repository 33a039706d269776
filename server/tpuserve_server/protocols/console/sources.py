"""ConsoleSources: the parts of the server that the console reads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tpuserve_server.access.files import CredentialFiles
from tpuserve_server.core.serving.budgets import Budgets
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.server_state import CertificateStatus
from tpuserve_server.observe.metrics.live_measurements import LiveMeasurements
from tpuserve_server.observe.requests.request_record import SlowRequests
from tpuserve_server.protocols.console.addresses import Addresses
from tpuserve_server.protocols.console.server_facts import ServerFacts


@dataclass(frozen=True, slots=True)
class ConsoleSources:
    """Everything that the console shows comes from here."""

    service: InferenceService
    figures: LiveMeasurements
    slow: SlowRequests
    # Requests that are not answered, by protocol.
    in_flight: Callable[[], Mapping[str, int]]
    budgets: Budgets
    facts: ServerFacts
    addresses: Addresses
    # None without TLS.
    certificates: Callable[[], CertificateStatus | None]
    clock: Clock
    # None: the server identifies no clients.
    credentials: CredentialFiles | None = None

    @property
    def uptime_s(self) -> float:
        """Return the time since the start. The time of day may step, also backwards."""
        return self.clock.monotonic_s() - self.facts.started_s
