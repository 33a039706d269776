"""A TCP proxy in front of one upstream that injects faults: real sockets, gRPC and REST, with and without TLS."""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from tests.clients.faults.fault import Fault, Injection
from tests.clients.faults.http1_relay import Http1Relay
from tests.clients.faults.http2_frames import PREFACE
from tests.clients.faults.http2_relay import Http2Relay, first_of
from tests.clients.faults.link import Cut, Link, Streams

T = TypeVar("T")
_HOST: Final = "127.0.0.1"


class FaultProxy:
    """A proxy on a free port of 127.0.0.1. Its event loop, on the thread "fault-proxy", owns all connections.

    Any thread may call the methods, which block until the loop has done the work. `requests` counts the requests that
    reached the proxy, `connections` the connections that it accepted.
    """

    def __init__(self, upstream: str, stall_s: float = 0.5) -> None:
        """Prepare a proxy for `host:port`. `stall_s` is the delay of Fault.SLOW_HANDSHAKE."""
        self._upstream = upstream.rpartition(":")
        self._stall_s = stall_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy")
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._fault: Injection | None = None
        self._left: int | None = 0
        self._listener: asyncio.Server | None = None
        self.port = 0
        self.requests = 0
        self.connections = 0

    def start(self) -> None:
        self._thread.start()
        self._do(self._listen())

    def stop(self) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def inject(self, fault: Injection, times: int | None = 1) -> None:
        """Inject `fault` into the next `times` requests (None: into all until `heal`).

        Fault.SLOW_HANDSHAKE counts connections. Fault.REFUSE and Fault.BLACK_HOLE act at once and until `heal`.
        """
        self._do(self._inject(fault, times))

    def heal(self) -> None:
        """Inject no fault any more. Connections that went dead stay dead."""
        self._do(self._heal())

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _listen(self) -> None:
        listener = socket.create_server((_HOST, self.port))
        self.port = listener.getsockname()[1]
        self._listener = await asyncio.start_server(self._accept, sock=listener)

    async def _close_port(self) -> None:
        if self._listener is not None:
            # asyncio leaves a connection open if its server closes before the task of that connection starts. So stop
            # accepting connections, and let the tasks start.
            self._loop.remove_reader(self._listener.sockets[0].fileno())
            await asyncio.sleep(0)
            self._listener.close()
            self._listener = None

    async def _end(self) -> None:
        await self._close_port()
        for link in list(self._links):
            link.abort()
        # asyncio's own tasks may still pass connections to `_accept`. Without this wait, those would stay open.
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _inject(self, fault: Injection, times: int | None) -> None:
        self._fault, self._left = fault, times
        if fault is Fault.BLACK_HOLE:
            for link in self._links:
                link.is_dead = True
        if fault is Fault.REFUSE:
            await self._close_port()
            for link in list(self._links):
                link.abort()

    async def _heal(self) -> None:
        self._fault = None
        if self._listener is None:
            await self._listen()

    def _take(self, *, is_connection: bool = False) -> Injection | None:
        if not is_connection:
            self.requests += 1
        if self._fault in (None, Fault.REFUSE, Fault.BLACK_HOLE) or self._left == 0:
            return None
        if is_connection != (self._fault is Fault.SLOW_HANDSHAKE):
            return None
        if self._left is not None:
            self._left -= 1
        return self._fault

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = self._loop.create_task(self._serve((reader, writer)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before its first step runs no `finally`.
        task.add_done_callback(lambda ended: writer.transport.abort())

    async def _serve(self, client: Streams) -> None:
        try:
            if self._take(is_connection=True):
                await asyncio.sleep(self._stall_s)
            await self._relay(client)
        except OSError:
            pass  # the upstream refuses connections

    async def _relay(self, client: Streams) -> None:
        upstream = await asyncio.open_connection(self._upstream[0], self._upstream[2])
        link = Link(client, upstream, self._take)
        self._links.add(link)
        try:
            await _relay(link)
            await link.close()
        finally:
            self._links.discard(link)
            upstream[1].transport.abort()


async def _relay(link: Link) -> None:
    """Relay until either side ends its connection. A dead link ends only with the client's connection."""
    try:
        start = await link.client[0].readexactly(3)
        if PREFACE.startswith(start):
            await Http2Relay(link, start).run()
        elif start.isalpha():
            await Http1Relay(link, start).run()
        else:
            await link.to_upstream(start)
            await first_of(_copy(link.client[0], link.to_upstream), _copy(link.upstream[0], link.to_client))
    except Cut:
        link.abort()
    except (EOFError, OSError):
        pass  # either side ended its connection
    if link.is_dead:
        await link.discard()


async def _copy(reader: asyncio.StreamReader, write: Callable[[bytes], Awaitable[None]]) -> None:
    while data := await reader.read(2**16):
        await write(data)


@contextmanager
def proxied(address: str, stall_s: float = 0.5) -> Iterator[tuple[FaultProxy, str]]:
    """Start a proxy for the server at `address`. Yield it with its own address of the same scheme."""
    scheme, separator, place = address.rpartition("://")
    proxy = FaultProxy(place, stall_s)
    proxy.start()
    try:
        yield proxy, f"{scheme}{separator}{_HOST}:{proxy.port}"
    finally:
        proxy.stop()
