"""Interface between a host and the application it runs. Light imports only: the supervisor imports this module, too."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, TypeAlias

from tpuserve_server.core.serving.receiving import ReceivingBudget
from tpuserve_server.core.serving.sending import SendingBudget
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.server_state import CertificateStatus, Replacement, Traffic
from tpuserve_server.core.terms.setting import MAX_WAIT_S, Setting
from tpuserve_server.protocols.rpc import GuardedTable

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from tpuserve_server.core.serving.service import OverloadGate
    from tpuserve_server.observe.metrics.load_report import LoadReports
    from tpuserve_server.protocols.exchanges import Exchanges


class HostError(Exception):
    """A host cannot start or continue. The message is for the operator and states what to do."""


MEBIBYTE = 1 << 20
# The responses that have a report of the load.
LoadReporting: TypeAlias = Literal["asked", "always", "never"]


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """PEM texts. With a `client_ca`, clients must present a certificate that it has signed."""

    private_key: str = field(repr=False)
    # The server's certificate, then the intermediate certificates.
    certificate_chain: str = field(repr=False)
    client_ca: str | None = field(default=None, repr=False)
    # Source of each text, for error messages.
    key_name: str = "server_key"
    chain_name: str = "server_cert"
    ca_name: str = "custom_ca"


@dataclass(frozen=True, slots=True)
class HostOptions:
    """Listen addresses, limits and drain times. A port of None is off, 0 takes any free port."""

    bind_address: str = "0.0.0.0"
    grpc_port: int | None = 8500
    rest_port: int | None = 8501
    grpc_socket_path: str | None = None
    # True: the host opens addresses once the application is ready, and takes over a UNIX socket of another server.
    # False: it opens them at once, and refuses a UNIX socket that is in use.
    opens_when_ready: bool = False
    # Operators expect the ports of such a server to wait, so the command sets `opens_when_ready`, too.
    reuse_port: Annotated[
        bool,
        Setting(
            "Listening",
            "Allow other servers with this flag on the same ports, which share their connections, or replace this one "
            "without losing requests. The ports open after every model has loaded or failed. Linux only.",
        ),
    ] = False
    replace_pid: Annotated[
        int | None,
        Setting(
            "Listening",
            "Process id of a running server with --reuse_port: it gets SIGTERM once this server listens on its ports.",
            at_least=1,
        ),
    ] = None
    # TLS for the ports. The UNIX socket has none. None: no encryption.
    tls: TlsOptions | None = None
    # Time between looks at the files of the certificates. 0: only after SIGHUP.
    tls_poll_wait_s: float = 0.0
    # gRPC's channel arguments, by name.
    grpc_arguments: tuple[tuple[str, int | str], ...] = ()
    # Limit of one gRPC message, before and after decompression.
    max_message_bytes: int = 64 * MEBIBYTE
    # Limit of one REST body. The REST application enforces it; a host sizes its buffers by it.
    max_body_bytes: int = 64 * MEBIBYTE
    # A client that is slower loses its connection. Some load balancers keep idle connections for a minute.
    header_timeout_s: Annotated[
        float,
        Setting(
            "Listening",
            "Maximum pause of a client in the headers of a request, and between two requests over HTTP/1.1.",
            name="header_timeout_seconds",
            at_least=0.1,
            at_most=3600,
        ),
    ] = 90.0
    # A client that reads nothing of its response for longer loses it.
    write_timeout_s: Annotated[
        float,
        Setting(
            "Listening",
            "Maximum time in which a client takes no byte of its response. The server then cuts the response.",
            name="write_timeout_seconds",
            at_least=0.1,
            at_most=3600,
        ),
    ] = 30.0
    # The server still accepts requests for this long after it reports not ready, so that load balancers notice.
    drain_delay_s: Annotated[
        float,
        Setting(
            "Operations",
            "Time between SIGTERM and the drain, in which the server reports not ready but still accepts requests.",
            name="drain_delay_seconds",
            at_least=0,
            at_most=MAX_WAIT_S,
        ),
    ] = 0.0
    # After the delay, requests in flight get this long before the server cancels them.
    drain_timeout_s: Annotated[
        float,
        Setting(
            "Operations",
            "Maximum wait for requests in flight during the drain.",
            name="drain_timeout_seconds",
            at_least=0,
            at_most=MAX_WAIT_S,
        ),
    ] = 30.0

    max_connections: Annotated[
        int, Setting("Operations", "Maximum number of client connections. More wait until others close.", at_least=1)
    ] = 10_000
    max_requests_per_s: Annotated[
        float,
        Setting(
            "Operations",
            "Maximum rate of inference requests, after a burst of one second. The server refuses more with 429 or "
            "RESOURCE_EXHAUSTED. 0: no limit.",
            name="max_requests_per_second",
            at_least=0,
            at_most=1e6,
        ),
    ] = 0.0

    load_reports: Annotated[
        LoadReporting,
        Setting(
            "Operations",
            "Responses of inference with the load of the server, for clients and proxies that balance by it (ORCA). "
            "asked: those to requests with the header endpoint-load-metrics-format.",
        ),
    ] = "asked"

    def __post_init__(self) -> None:
        if self.replace_pid is not None and not self.reuse_port:
            raise InvalidArgument("replace_pid needs reuse_port: both servers listen on the ports for a moment")
        if self.grpc_port is None and self.rest_port is None and self.grpc_socket_path is None:
            raise HostError("The host has no address to listen on. Set a gRPC port, a REST port or a gRPC socket path.")


@dataclass(frozen=True, slots=True)
class Listening:
    """Open addresses as a client writes them: `host:port` or `unix:PATH`. None for an address that is off."""

    grpc: str | None = None
    rest: str | None = None
    grpc_socket: str | None = None
    tls: bool = False


class Application(Protocol):
    """The server without a transport. A host calls all methods on its event loop."""

    @property
    def rpc(self) -> GuardedTable:
        """The gRPC methods by path. A host reads them once, after `start`."""
        ...

    @property
    def rest(self) -> "ASGIApp":
        """The REST application. It gets only `http` scopes, and limits the size of bodies itself."""
        ...

    @property
    def rest_exchanges(self) -> "Exchanges | None":
        """The requests of `rest` that need no task, or None if every request must pass a rule."""
        ...

    @property
    def receiving(self) -> ReceivingBudget:
        """The budget of all requests that are still arriving. Hosts charge gRPC messages, `rest` charges its bodies."""
        ...

    @property
    def sending(self) -> SendingBudget:
        """The budget of all responses that clients have not read. Hosts charge them."""
        ...

    @property
    def traffic(self) -> Traffic:
        """Hosts count every request in it."""
        ...

    @property
    def load_reports(self) -> "LoadReports":
        """The reports of load that hosts add to responses."""
        ...

    @property
    def overload_gate(self) -> "OverloadGate":
        """Hosts ask it about every request with a deadline before they read its body."""
        ...

    async def start(self) -> None:
        """Begin loading models and return at once. Raises an error if the configuration cannot work."""
        ...

    async def ready(self) -> None:
        """Wait until every model of the start has loaded or finally failed, and at least one serves."""
        ...

    async def failure(self) -> str:
        """Wait until this application can no longer begin to serve, and return the reason for the operator."""
        ...

    async def replacement(self) -> Replacement:
        """Wait until another process should take the place of this one, and return the reason."""
        ...

    def announce(self, listening: Listening) -> None:
        """Report the addresses that the host has opened."""
        ...

    def show_certificates(self, status: CertificateStatus) -> None:
        """Show the certificates in use: after the start, and after each attempt to replace them. Never without TLS."""
        ...

    def reload(self) -> None:
        """Begin to read the configuration again, and return at once. Errors change nothing and are logged."""
        ...

    def drain(self) -> None:
        """Report not ready and not healthy from now on, but continue to serve. May be called more than once."""
        ...

    async def stop(self) -> None:
        """Release the resources of `start`, after the last request."""
        ...
