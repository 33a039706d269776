"""Certificates of the Python host: new connections use those that SIGHUP has read last."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext

import grpc

from tpuserve_server.core.certificate_status import CertificateStatus
from tpuserve_server.hosts.certificate_poll import CertificatePoll
from tpuserve_server.hosts.certificate_replacement import check_replacement
from tpuserve_server.hosts.certificate_validity import certificate_status
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.tls import TlsOptions, server_context

_log = logging.getLogger(__name__)


class Certificates:
    """The certificates for gRPC and REST. The event loop replaces them; threads of gRPC read them."""

    def __init__(
        self,
        tls: TlsOptions,
        read: Callable[[], TlsOptions] | None,
        show: Callable[[CertificateStatus], None],
    ) -> None:
        """Begin with `tls`, which the caller has checked. `read` reads them again, and raises HostError.

        `show` gets the status now and after each reload.
        """
        self._tls = tls
        self._read = read
        self._show = show
        self._configuration = _configuration(tls)
        self._listeners: list[Callable[[], Awaitable[None]]] = []
        self._reloading: asyncio.Task[None] | None = None
        show(certificate_status(tls))

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials for gRPC, which asks for the certificates at each handshake."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration, lambda: self._configuration, self._tls.client_ca is not None
        )

    def context(self) -> ssl.SSLContext:
        """Return a context with the current certificates, for asyncio's servers.

        A server must replace its context after each reload. A callback could choose the certificates in each handshake
        (`sni_callback`), but a session that the first context has issued would outlive the authority of its client.
        """
        return server_context(self._tls)

    def follow(self, listener: Callable[[], Awaitable[None]]) -> None:
        """Run `listener` after each reload."""
        self._listeners.append(listener)

    def polled(self, wait_s: float) -> AbstractContextManager[None]:
        """Return a block during which the certificates are reloaded when their file changes."""
        if self._read is None:
            return nullcontext()
        return CertificatePoll(self._read, wait_s, self.reload).running(self._tls)

    def reload(self) -> None:
        """Begin to read the certificates again. Errors change nothing and are logged."""
        if self._read is not None and (self._reloading is None or self._reloading.done()):
            self._reloading = asyncio.create_task(self._reload(self._read))

    async def _reload(self, read: Callable[[], TlsOptions]) -> None:
        try:
            tls = await asyncio.to_thread(check_replacement, read, self._tls)
        except HostError as error:
            _log.error("The server keeps its certificates: %s", error)
            self._show(certificate_status(self._tls, str(error)))
            return
        self._tls, self._configuration = tls, _configuration(tls)
        for listener in self._listeners:
            await listener()
        self._show(certificate_status(tls))
        _log.info("New connections use the certificates that were read again")


def _configuration(tls: TlsOptions) -> grpc.ServerCertificateConfiguration:
    ca = tls.client_ca.encode() if tls.client_ca is not None else None
    pair = (tls.private_key.encode(), tls.certificate_chain.encode())
    return grpc.ssl_server_certificate_configuration([pair], ca)
