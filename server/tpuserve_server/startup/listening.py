"""Host options from the operator's settings. Imports no heavy modules, because the supervisor imports it."""

import logging
from collections.abc import Callable
from dataclasses import replace

from tpuserve_formats.messages._proto.ssl_config_pb2 import SSLConfig
from tpuserve_server.core.terms.storage import FileName
from tpuserve_server.hosts.application import HostError, HostOptions, TlsOptions
from tpuserve_server.startup.config_files import ConfigError, read, show_file
from tpuserve_server.startup.file_checks import find_exposure
from tpuserve_server.startup.server_settings import ListeningSettings

logger = logging.getLogger(__name__)


def host_options(listening: ListeningSettings, host: HostOptions) -> HostOptions:
    """Complete the host's options. Raises ConfigError for an unusable SSLConfig."""
    return replace(
        host,
        bind_address=listening.bind_address,
        grpc_port=listening.port or None,
        rest_port=listening.rest_api_port or None,
        grpc_socket_path=str(listening.grpc_socket_path) if listening.grpc_socket_path else None,
        opens_when_ready=listening.ports_wait_for_models or host.reuse_port,
        max_message_bytes=listening.max_request_bytes,
        max_body_bytes=listening.max_request_bytes,
        tls=None if listening.ssl_config_file is None else read_tls(listening.ssl_config_file),
        tls_poll_wait_s=listening.ssl_config_file_poll_wait_seconds,
        grpc_arguments=listening.grpc_channel_arguments,
    )


def tls_reader(listening: ListeningSettings) -> Callable[[], TlsOptions] | None:
    """Return a function that reads the SSLConfig again and raises HostError, or None without TLS.

    It logs a warning if other users can reach the key.
    """
    path = listening.ssl_config_file
    if path is None:
        return None

    def read() -> TlsOptions:
        if exposure := find_exposure("ssl_config_file", path):
            logger.warning("--ssl_config_file: %s", exposure)
        try:
            return read_tls(path)
        except ConfigError as error:
            raise HostError(str(error)) from None

    return read


def read_tls(path: FileName) -> TlsOptions:
    """Read the texts of an SSLConfig without checking them. Blocks.

    Like upstream (model_servers/server.cc), this ignores custom_ca without client_verify. Upstream accepts
    client_verify without custom_ca, and then trusts any public authority. This server reports an error instead, because
    an operator hardly intends that.

    Raises:
        ConfigError: the file cannot be read, is not an SSLConfig, or lacks a required field.
    """
    config = read(path, SSLConfig(), secret=True)
    needed = ["server_key", "server_cert", *(["custom_ca"] if config.client_verify else [])]
    if missing := [name for name in needed if not getattr(config, name)]:
        after = ", which client_verify requires" if missing == ["custom_ca"] else ""
        raise ConfigError(f"SSLConfig '{show_file(path)}' lacks {' and '.join(missing)}{after}")
    client_ca = config.custom_ca if config.client_verify else None
    return TlsOptions(config.server_key, config.server_cert, client_ca, origin=f"SSLConfig '{show_file(path)}'")
