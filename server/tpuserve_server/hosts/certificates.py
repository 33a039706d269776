"""Certificates of the Python host: new connections use those that SIGHUP has read last."""

import asyncio
import logging
import ssl
from collections.abc import Callable

import grpc

from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.tls import TlsOptions, check_replacement, server_context

_log = logging.getLogger(__name__)


class Certificates:
    """The certificates for gRPC and REST. The event loop replaces them; threads of gRPC read them."""

    def __init__(self, tls: TlsOptions, read: Callable[[], TlsOptions] | None) -> None:
        """Begin with `tls`, which the caller has checked. `read` reads them again, and raises HostError."""
        self._tls = tls
        self._read = read
        self._context = server_context(tls)
        self._configuration = _configuration(tls)
        self._reloading: asyncio.Task[None] | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials for gRPC, which asks for the certificates at each handshake."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration, lambda: self._configuration, self._tls.client_ca is not None
        )

    def context(self) -> ssl.SSLContext:
        """Return a context for asyncio's servers, which continues each handshake with the current certificates."""
        context = server_context(self._tls)
        # OpenSSL calls this after the client's first message, even if the client names no server.
        context.sni_callback = self._choose
        return context

    def reload(self) -> None:
        """Begin to read the certificates again. Errors change nothing and are logged."""
        if self._read is not None and (self._reloading is None or self._reloading.done()):
            self._reloading = asyncio.create_task(self._reload(self._read))

    async def _reload(self, read: Callable[[], TlsOptions]) -> None:
        try:
            tls = await asyncio.to_thread(check_replacement, read, self._tls)
        except HostError as error:
            _log.error("The server keeps its certificates: %s", error)
            return
        self._tls, self._context, self._configuration = tls, server_context(tls), _configuration(tls)
        _log.info("New connections use the certificates that were read again")

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._context


def _configuration(tls: TlsOptions) -> grpc.ServerCertificateConfiguration:
    ca = tls.client_ca.encode() if tls.client_ca is not None else None
    pair = (tls.private_key.encode(), tls.certificate_chain.encode())
    return grpc.ssl_server_certificate_configuration([pair], ca)
