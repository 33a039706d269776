"""What a host carries, what it is told, and what it tells back. Imports nothing heavy: the supervisor reads it too."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Protocol

from tpuserve_server.core.setting import MAX_WAIT_S, Setting
from tpuserve_server.frontends.rpc import RpcTable
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.tls import TlsOptions

if TYPE_CHECKING:
    from starlette.types import ASGIApp

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class HostOptions:
    """Where to listen and how to stop. Ports: None is off, 0 takes any free one."""

    bind_address: str = "0.0.0.0"
    grpc_port: int | None = 8500
    rest_port: int | None = 8501
    grpc_socket_path: str | None = None
    # The host opens addresses once the application is ready, and takes over a UNIX socket of another server.
    # False: it opens them at once, and refuses a UNIX socket that is in use.
    opens_when_ready: bool = False
    # On every address, the socket's too, as TensorFlow Serving has it. None: in the clear.
    tls: TlsOptions | None = None
    # gRPC's channel arguments, by name.
    grpc_arguments: tuple[tuple[str, int | str], ...] = ()
    # Of one gRPC message, before and after decompression.
    max_message_bytes: int = 64 * MEBIBYTE
    # Of one REST body. The REST application enforces it; a host sizes its buffers by it.
    max_body_bytes: int = 64 * MEBIBYTE
    # How long requests are still taken after readiness said no: what load balancers need to look away.
    drain_delay_s: Annotated[
        float,
        Setting(
            "Operations",
            "After SIGTERM: say not ready this long before closing.",
            name="drain_delay_seconds",
            at_least=0,
            at_most=MAX_WAIT_S,
        ),
    ] = 0.0
    # How long requests in flight may take after that before they are cut.
    drain_timeout_s: Annotated[
        float,
        Setting(
            "Operations",
            "Longest wait for requests in flight at the end.",
            name="drain_timeout_seconds",
            at_least=0,
            at_most=MAX_WAIT_S,
        ),
    ] = 30.0

    def __post_init__(self) -> None:
        if self.grpc_port is None and self.rest_port is None and self.grpc_socket_path is None:
            raise HostError("Nothing to listen on: give a gRPC port, a REST port or a gRPC socket path.")


@dataclass(frozen=True, slots=True)
class Listening:
    """Addresses as a client would write them: `host:port`, or `unix:PATH`. None where there is none."""

    grpc: str | None = None
    rest: str | None = None
    grpc_socket: str | None = None
    tls: bool = False


class Application(Protocol):
    """The server without a transport. A host calls everything on its one event loop."""

    @property
    def rpc(self) -> RpcTable:
        """gRPC's methods by path. Read once, after `start`."""
        ...

    @property
    def rest(self) -> "ASGIApp":
        """The REST application. Gets `http` scopes only; bounds its own bodies."""
        ...

    async def start(self) -> None:
        """Begin loading models and return at once. Raises when the configuration cannot work at all."""
        ...

    async def ready(self) -> None:
        """Wait until every model of the start has loaded or failed for good, and at least one serves."""
        ...

    async def failure(self) -> str:
        """Wait until it is clear that this application will never serve; the reason, for an operator."""
        ...

    def announce(self, listening: Listening) -> None:
        """The ports are open."""
        ...

    def drain(self) -> None:
        """Say no to readiness and health from now on, and go on serving. May be called more than once."""
        ...

    async def stop(self) -> None:
        """After the last request: release what `start` took."""
        ...
