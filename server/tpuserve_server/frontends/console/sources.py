"""ConsoleSources: the parts of the server that the console reads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tpuserve_server.core.budgets.budgets import Budgets
from tpuserve_server.core.certificate_status import CertificateStatus
from tpuserve_server.core.deadline import Clock
from tpuserve_server.core.live_figures import LiveFigures
from tpuserve_server.core.service import InferenceService
from tpuserve_server.frontends.console.addresses import Addresses
from tpuserve_server.frontends.console.server_facts import ServerFacts
from tpuserve_server.identity.files import CredentialFiles
from tpuserve_server.telemetry.slow_requests import SlowRequests


@dataclass(frozen=True, slots=True)
class ConsoleSources:
    """Everything that the console shows comes from here."""

    service: InferenceService
    figures: LiveFigures
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
