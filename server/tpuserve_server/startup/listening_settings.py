"""Settings for ports, hosts and TLS, as the flags declare them."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.setting import MAX_WAIT_S, Setting
from tpuserve_server.protocols.vertex.route_form import check_route

ChannelArguments: TypeAlias = tuple[tuple[str, int | str], ...]

# Variables of Vertex AI's contract.
_HTTP_PORT, _HEALTH_ROUTE, _PREDICT_ROUTE = "AIP_HTTP_PORT", "AIP_HEALTH_ROUTE", "AIP_PREDICT_ROUTE"


def _channel_arguments(text: str) -> ChannelArguments:
    """Parse `name=value,…`. Numbers become int and other values stay text, as in TensorFlow Serving."""
    return tuple(_channel_argument(part) for part in text.split(",") if part)


def _channel_argument(text: str) -> tuple[str, int | str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ValueError(f"expected name=value,name=value,…, got {text!r}")
    try:
        return key, int(value)
    except ValueError:
        return key, value


@dataclass(frozen=True, slots=True)
class ListeningSettings:
    """Addresses and limits of the server, with TensorFlow Serving's names and units. Port 0 disables a port.

    Raises:
        InvalidArgument: no port or socket is set, both ports are the same, or a route of Vertex AI is invalid.
    """

    port: Annotated[int, Setting("Listening", "gRPC port; 0 disables it.", at_least=0, at_most=65535)] = 8500
    rest_api_port: Annotated[
        int, Setting("Listening", "REST port; 0 disables it.", at_least=0, at_most=65535, variables=(_HTTP_PORT,))
    ] = 8501
    vertex_health_route: Annotated[
        str | None,
        Setting("Listening", "Additional path of the readiness, as Vertex AI chooses it.", variables=(_HEALTH_ROUTE,)),
    ] = None
    vertex_predict_route: Annotated[
        str | None,
        Setting(
            "Listening",
            "Additional path of predictions of the model, as Vertex AI chooses it.",
            variables=(_PREDICT_ROUTE,),
        ),
    ] = None
    grpc_socket_path: Annotated[
        Path | None, Setting("Listening", "Path of a UNIX socket for gRPC, in addition to the port.")
    ] = None
    bind_address: Annotated[str, Setting("Listening", "Address to bind both ports to.")] = "0.0.0.0"
    ports_wait_for_models: Annotated[
        bool,
        Setting(
            "Listening",
            "Open the ports and the UNIX socket after every model has loaded or failed, as TensorFlow Serving does. "
            "false: open them at once.",
        ),
    ] = False
    ssl_config_file: Annotated[Path | None, Setting("Listening", "File with an SSLConfig: TLS for gRPC and REST.")] = (
        None
    )
    ssl_config_file_poll_wait_seconds: Annotated[
        float,
        Setting(
            "Listening",
            "Interval between checks of that file for new certificates; 0 checks after SIGHUP alone.",
            at_least=0,
            at_most=MAX_WAIT_S,
        ),
    ] = 60.0
    grpc_channel_arguments: Annotated[
        ChannelArguments,
        Setting(
            "Listening",
            "Channel arguments of the gRPC server, such as grpc.max_connection_age_ms=2000.",
            parse=_channel_arguments,
        ),
    ] = ()
    # 0 or less disables the timeout, as upstream.
    rest_api_timeout_in_ms: Annotated[int, Setting("Listening", "Timeout of a REST request; 0 disables it.")] = 30000
    rest_api_enable_cors_support: Annotated[
        bool, Setting("Listening", "Allow pages of other origins to call REST.")
    ] = False
    max_request_bytes: Annotated[
        int, Setting("Listening", "Maximum size of a gRPC message or a REST body.", at_least=1, below=2**31)
    ] = 64 * 2**20

    def __post_init__(self) -> None:
        if self.port == 0 and self.rest_api_port == 0 and self.grpc_socket_path is None:
            raise InvalidArgument(
                "the server has no address to listen on: port and rest_api_port are 0, and grpc_socket_path is not "
                "set. Set one of them"
            )
        if self.port and self.port == self.rest_api_port:
            raise InvalidArgument(f"port and rest_api_port are both {self.port}; they must differ")
        for setting, route in (self.health_route, self.predict_route):
            if route is not None and self.rest_api_port == 0:
                raise InvalidArgument(f"{setting} needs the REST port, but rest_api_port ({_HTTP_PORT}) is 0")
            if route is not None:
                check_route(setting, route)

    @property
    def has_vertex_routes(self) -> bool:
        """Whether Vertex AI, or the operator, has chosen a route."""
        return self.vertex_health_route is not None or self.vertex_predict_route is not None

    @property
    def health_route(self) -> tuple[str, str | None]:
        """Vertex AI's health route, after its name for messages."""
        return f"vertex_health_route ({_HEALTH_ROUTE})", self.vertex_health_route

    @property
    def predict_route(self) -> tuple[str, str | None]:
        """Vertex AI's predict route, after its name for messages."""
        return f"vertex_predict_route ({_PREDICT_ROUTE})", self.vertex_predict_route

    @property
    def rest_timeout_s(self) -> float:
        """Timeout of a REST request in seconds; inf for none."""
        return self.rest_api_timeout_in_ms / 1000 if self.rest_api_timeout_in_ms > 0 else math.inf
