"""Options of the host, from the settings. Imports nothing heavy: the supervisor of Envoy imports it."""

from pathlib import Path

from tpuserve_server.command.settings import Settings
from tpuserve_server.config.ssl_config import read_ssl_config
from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.tls import TlsOptions


def host_options(settings: Settings) -> HostOptions:
    """Build the host's options. Raises ConfigError for an SSLConfig that cannot be used."""
    return HostOptions(
        bind_address=settings.bind_address,
        grpc_port=settings.port or None,
        rest_port=settings.rest_api_port or None,
        grpc_socket_path=str(settings.grpc_socket_path) if settings.grpc_socket_path else None,
        opens_when_ready=settings.ports_wait_for_models,
        max_message_bytes=settings.max_request_bytes,
        max_body_bytes=settings.max_request_bytes,
        drain_delay_s=settings.drain_delay_seconds,
        drain_timeout_s=settings.drain_timeout_seconds,
        tls=None if settings.ssl_config_file is None else read_tls(settings.ssl_config_file),
        grpc_arguments=settings.grpc_channel_arguments,
    )


def read_tls(path: Path) -> TlsOptions:
    """Read the texts of an SSLConfig without checking them. Raises ConfigError when the file cannot be used."""
    config = read_ssl_config(path)
    return TlsOptions(config.server_key, config.server_cert, config.client_ca, origin=f"SSLConfig '{path}'")
