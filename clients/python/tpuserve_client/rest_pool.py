"""httpx transports over a limited number of httpcore connections, blocking and asyncio. See `slots.py`."""

import ssl
from collections.abc import AsyncIterator, Iterator

import httpcore
import httpx

from tpuserve_client.closing_backend import ClosingBackend
from tpuserve_client.deadline_backend import DeadlineBackend
from tpuserve_client.limits import Pool
from tpuserve_client.slots import AsyncSlots, Slots


class PooledTransport(httpx.BaseTransport):
    """Blocking connections on the backend's sockets, which httpx's own transport cannot use."""

    def __init__(self, backend: DeadlineBackend, context: ssl.SSLContext | None, pool: Pool) -> None:
        def make() -> httpcore.ConnectionPool:
            return httpcore.ConnectionPool(
                ssl_context=context,
                max_connections=1,
                keepalive_expiry=pool.idle_timeout_s,
                network_backend=backend,
            )

        self._backend = backend
        self._slots = Slots(pool.max_connections, make, pool.idle_timeout_s, httpcore.ConnectionPool.close)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        slot = self._slots.take(self._backend.remaining())
        try:
            answer = slot.handle_request(_core_request(request))
        except BaseException:
            self._slots.give_back(slot)
            raise
        body = _Body(answer, slot, self._slots)
        return httpx.Response(answer.status, headers=answer.headers, stream=body, extensions=answer.extensions)

    def close(self) -> None:
        self._slots.close()


class _Body(httpx.SyncByteStream):
    """A response body that httpcore streams to httpx. Closing it gives the slot back."""

    def __init__(
        self, answer: httpcore.Response, slot: httpcore.ConnectionPool, slots: Slots[httpcore.ConnectionPool]
    ) -> None:
        self._answer = answer
        self._slot = slot
        self._slots = slots
        self._is_closed = False

    def __iter__(self) -> Iterator[bytes]:
        return self._answer.iter_stream()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._answer.close()
        finally:
            self._slots.give_back(self._slot)


class AsyncPooledTransport(httpx.AsyncBaseTransport):
    """Connections of one event loop."""

    def __init__(self, context: ssl.SSLContext | None, pool: Pool) -> None:
        def make() -> httpcore.AsyncConnectionPool:
            return httpcore.AsyncConnectionPool(
                ssl_context=context,
                max_connections=1,
                keepalive_expiry=pool.idle_timeout_s,
                network_backend=backend,
            )

        backend = ClosingBackend()
        self._make = make
        self._slots = AsyncSlots(pool.max_connections, make, pool.idle_timeout_s)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        slot = await self._slots.take()
        try:
            answer = await slot.handle_async_request(_core_request(request))
        except BaseException:
            await self._replace(slot)
            raise
        body = _AsyncBody(answer, slot, self)
        return httpx.Response(answer.status, headers=answer.headers, stream=body, extensions=answer.extensions)

    async def aclose(self) -> None:
        for slot in self._slots.close():
            await slot.aclose()

    async def _give_back(self, slot: httpcore.AsyncConnectionPool) -> None:
        for expired in self._slots.give_back(slot):
            await expired.aclose()

    async def _replace(self, slot: httpcore.AsyncConnectionPool) -> None:
        """Close the slot of a failed request, and give back a new one.

        A cancellation can leave a connection in httpcore's pool that no later request can use. In a pool of one
        connection, they would wait for it until their deadlines.
        """
        try:
            await slot.aclose()
        finally:
            await self._give_back(self._make())


class _AsyncBody(httpx.AsyncByteStream):
    """A response body that httpcore streams to httpx. Closing it gives the slot back."""

    def __init__(
        self, answer: httpcore.Response, slot: httpcore.AsyncConnectionPool, transport: AsyncPooledTransport
    ) -> None:
        self._answer = answer
        self._slot = slot
        self._transport = transport
        self._is_closed = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._answer.aiter_stream()

    async def aclose(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await self._answer.aclose()
        except BaseException:
            await self._transport._replace(self._slot)  # the body's owner
            raise
        await self._transport._give_back(self._slot)


def _core_request(request: httpx.Request) -> httpcore.Request:
    url = request.url
    return httpcore.Request(
        request.method,
        httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
        headers=request.headers.raw,
        content=request.stream,
        extensions=request.extensions,
    )
