"""Host options from the operator's settings. Imports no heavy modules, because the supervisor imports it."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from tpuserve_formats.messages._proto.ssl_config_pb2 import SSLConfig
from tpuserve_server.core.terms.storage import FileName
from tpuserve_server.hosts.application import HostError, HostOptions, TlsOptions
from tpuserve_server.startup.config_files import ConfigError, read, read_text, show_file
from tpuserve_server.startup.file_checks import find_exposure
from tpuserve_server.startup.server_settings import ListeningSettings

logger = logging.getLogger(__name__)


# Number of times to read the three files until two readings are the same.
_MAX_READINGS: Final = 10


def host_options(listening: ListeningSettings, host: HostOptions) -> HostOptions:
    """Complete the host's options. Raises ConfigError for unusable files of certificates."""
    read_certificates = find_certificates(listening)
    return replace(
        host,
        bind_address=listening.bind_address,
        grpc_port=listening.port or None,
        rest_port=listening.rest_api_port or None,
        grpc_socket_path=str(listening.grpc_socket_path) if listening.grpc_socket_path else None,
        opens_when_ready=listening.ports_wait_for_models or host.reuse_port,
        max_message_bytes=listening.max_request_bytes,
        max_body_bytes=listening.max_request_bytes,
        tls=None if read_certificates is None else read_certificates(),
        tls_poll_wait_s=listening.ssl_config_file_poll_wait_seconds,
        grpc_arguments=listening.grpc_channel_arguments,
    )


def tls_reader(listening: ListeningSettings) -> Callable[[], TlsOptions] | None:
    """Return a function that reads the certificates again and raises HostError, or None without TLS.

    It logs a warning if other users can reach the key.
    """
    read_certificates = find_certificates(listening)
    if read_certificates is None:
        return None

    def read_again() -> TlsOptions:
        for name, path in listening.certificate_files.items():
            if exposure := find_exposure(name, path):
                logger.warning("--%s: %s", name, exposure)
        try:
            return read_certificates()
        except ConfigError as error:
            raise HostError(str(error)) from None

    return read_again


def find_certificates(listening: ListeningSettings) -> Callable[[], TlsOptions] | None:
    """Return the function that reads the texts from the files of the flags, or None without TLS.

    The function blocks, does not check the texts, and raises ConfigError for a file that cannot be read.
    """
    if listening.ssl_config_file is not None:
        return partial(read_ssl_config, listening.ssl_config_file)
    certificate, key = listening.tls_cert_file, listening.tls_key_file
    if certificate is None or key is None:
        return None
    return partial(_read_pem_files, certificate, key, listening.tls_client_ca_file)


def read_ssl_config(path: FileName) -> TlsOptions:
    """Read the texts of an SSLConfig without checking them. Blocks.

    Like upstream (model_servers/server.cc), this ignores custom_ca without client_verify. Upstream accepts
    client_verify without custom_ca, and then trusts any public authority. This server reports an error instead, because
    an operator hardly intends that.

    Raises:
        ConfigError: the file cannot be read, is not an SSLConfig, or lacks a required field.
    """
    config, origin = read(path, SSLConfig(), secret=True), f"SSLConfig '{show_file(path)}'"
    needed = ["server_key", "server_cert", *(["custom_ca"] if config.client_verify else [])]
    if missing := [name for name in needed if not getattr(config, name)]:
        after = ", which client_verify requires" if missing == ["custom_ca"] else ""
        raise ConfigError(f"{origin} lacks {' and '.join(missing)}{after}")
    client_ca = config.custom_ca if config.client_verify else None
    names = (f"{origin}: {name}" for name in ("server_key", "server_cert", "custom_ca"))
    return TlsOptions(config.server_key, config.server_cert, client_ca, *names)


def _read_pem_files(certificate: FileName, key: FileName, client_ca: FileName | None) -> TlsOptions:
    """Read the texts of PEM files. Blocks.

    The kubelet replaces all files of a Secret at once, by a symbolic link to their directory. Two equal readings in a
    row are from the same directory: a replacement between two files changes the next reading.
    """

    def reading() -> TlsOptions:
        return TlsOptions(
            read_text(key),
            read_text(certificate),
            None if client_ca is None else read_text(client_ca),
            f"Key '{show_file(key)}'",
            f"certificate '{show_file(certificate)}'",
            f"Client authority '{show_file(client_ca)}'" if client_ca is not None else "tls_client_ca_file",
        )

    found = reading()
    for _ in range(_MAX_READINGS):
        before, found = found, reading()
        if found == before:
            return found
    raise ConfigError(f"'{show_file(certificate)}' and the files beside it change all the time")
