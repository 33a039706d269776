"""ConsoleSources: the parts of the server that the console reads, with facts of the process and its addresses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tpuserve_server.access.files import CredentialFiles
from tpuserve_server.core.serving.budgets import Budgets
from tpuserve_server.core.serving.service import InferenceService
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.server_state import Build, CertificateStatus
from tpuserve_server.observe.metrics.live_measurements import LiveMeasurements
from tpuserve_server.observe.requests.slow_requests import SlowRequests


@dataclass(frozen=True, slots=True)
class ChangedFlag:
    """A flag with another value than its default, both as JSON. The values contain no secret."""

    name: str
    value: Any  # any JSON
    default: Any  # any JSON


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The build, the start, versions of packages by name, and flags.

    The start is in seconds since 1970, and by `Clock.monotonic_s`, which no clock step changes.
    """

    build: Build
    started_unix_s: float
    started_s: float
    packages: Mapping[str, str]
    flags: tuple[ChangedFlag, ...] = ()


class Addresses:
    """Addresses as the host announces them: `host:port` or `unix:PATH`. Any thread may call any method."""

    def __init__(self) -> None:
        """Know no address."""
        self._announced: dict[str, str | bool | None] = {"grpc": None, "rest": None, "grpc_socket": None, "tls": False}

    def announce(self, *, grpc: str | None, rest: str | None, grpc_socket: str | None, tls: bool) -> None:
        """Replace the addresses. None is an address that is off. `tls` holds for all of them."""
        self._announced = {"grpc": grpc, "rest": rest, "grpc_socket": grpc_socket, "tls": tls}

    def describe(self, *, may_control: bool) -> dict[str, Any]:
        """Return the addresses as JSON. Without `may_control` without the socket, which is a path."""
        return dict(self._announced) if may_control else {**self._announced, "grpc_socket": None}


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
