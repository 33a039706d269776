"""Sockets that a cancelled TLS handshake closes.

httpcore closes a socket whose handshake fails, but not one whose handshake is cancelled. A call that ends at its
deadline is cancelled, and would leave the socket open until Python collects it.
"""

import ssl
from collections.abc import Iterable
from typing import Any

import httpcore


class ClosingBackend(httpcore.AsyncNetworkBackend):
    """httpcore's own sockets for asyncio."""

    def __init__(self) -> None:
        self._sockets = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  httpcore's
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return _ClosingStream(await self._sockets.connect_tcp(host, port, timeout, local_address, socket_options))


class _ClosingStream(httpcore.AsyncNetworkStream):
    """A connection before its handshake. It stays the connection if there is none."""

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109  httpcore's
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109  httpcore's
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  httpcore's
    ) -> httpcore.AsyncNetworkStream:
        try:
            return await self._stream.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            await self._stream.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401  httpcore's
        return self._stream.get_extra_info(info)
