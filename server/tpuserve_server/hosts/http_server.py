"""HttpServer: HTTP/1.1, HTTP/2 and TLS on open sockets, in the event loop of the application.

Only this module knows h2corn (decision 85). The application relies on ASGI 3 with the extensions
`http.response.trailers` and `tls`.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import h2corn
import h2corn._lib

from tpuserve_server.hosts.addresses import heed_new_connections, ignore_new_connections, listen
from tpuserve_server.hosts.application import HostError, HostOptions, TlsOptions
from tpuserve_server.hosts.certificates import private_file
from tpuserve_server.hosts.limits import (
    AGE_MS,
    IDLE_CONNECTION_S,
    IDLE_MS,
    MAX_HEADERS_COUNT,
    MAX_STREAMS_PER_CONNECTION,
    REQUEST_TIMEOUT_S,
    STREAMS,
    find_connection_limit,
    known_arguments,
)
from tpuserve_server.hosts.quick_calls import allow_quick_calls
from tpuserve_server.protocols.grpc_methods import INFERENCE_PATHS

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from starlette.types import Receive, Scope, Send

_log = logging.getLogger(__name__)

# Bytes of requests that a client may send before the application reads them, for a stream and for a connection.
WINDOW_BYTES: Final = 1 << 20
# h2corn's limits on headers end the connection. They are above the application's limit, which refuses one request.
_MAX_HEADER_BYTES: Final = 128 << 10
# Time in which clients with kept connections learn from a response to connect again.
FAREWELL_S: Final = 2.0
# Time in which the client of a new connection sends its first request, which takes 3 round trips with TLS. The end of a
# server drops it if it comes later. Clients whose packets are ignored meanwhile send them again after a second.
_FIRST_REQUEST_S: Final = 0.9
# Time in which calls that were on their way are refused after GOAWAY: longer than most network round trips.
_REFUSAL_S: Final = 0.5
# Time between attempts to start.
_PAUSE_S: Final = 1.0
# Time for a TLS handshake, and for the first bytes of a request.
_HANDSHAKE_S: Final = 10.0
# The owner of the server ends it sooner.
_FOREVER_S: Final = 86400.0

# Standard error contains only events of the server's log.
h2corn._lib.emit_banner = lambda *_: None


class Endpoint(Protocol):
    """An ASGI application that can ask its clients to connect again."""

    @property
    def holds(self) -> bool:
        """Whether tasks of answered calls wait for `release`, so that their connections outlive GOAWAY."""
        ...

    def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> "Awaitable[None]":
        """Answer one scope."""
        ...

    def say_farewell(self) -> None:
        """Ask clients of HTTP/1.1 with every response to close their connection, and hold calls of HTTP/2."""
        ...

    def take_farewells(self) -> int:
        """Return the number of responses that have asked for it since the last call."""
        ...

    def release(self) -> None:
        """End the tasks that wait for it."""
        ...


@dataclass(frozen=True, slots=True)
class _Generation:
    """The connections that one h2corn server has accepted, all with the same certificates."""

    endpoint: Endpoint
    server: h2corn.Server
    serving: "asyncio.Task[None]"

    async def end(self) -> None:
        """Accept no more connections, and wait until those that are open have sent their last response."""
        self.server.shutdown()
        if self.endpoint.holds:
            await asyncio.sleep(_REFUSAL_S)
        self.endpoint.release()
        await asyncio.wait({self.serving})


class HttpServer:
    """Serves sockets with successive generations of servers. One event loop's thread owns it.

    A new generation takes new connections, while the one before it finishes its own. This replaces certificates, and
    limits the age of connections, without a failed request.
    """

    def __init__(
        self,
        make_endpoint: Callable[[asyncio.AbstractEventLoop], Endpoint],
        sockets: Mapping[str, socket.socket],
        options: HostOptions,
    ) -> None:
        """Serve `sockets`, bound and by their field of `Listening`, with one endpoint for each generation.

        `make_endpoint` gets the event loop, which `allow_quick_calls` has prepared.
        """
        self._make_endpoint = make_endpoint
        self._sockets = sockets
        self._config = _config(options)
        age_ms = known_arguments(options.grpc_arguments).get(AGE_MS)
        self._age_s = None if age_ms is None else age_ms / 1000
        self._tls: TlsOptions | None = None
        self._generations: list[_Generation] = []
        # Tasks that end older generations, and that start one in place of a generation that has failed.
        self._tasks: set[asyncio.Task[None]] = set()
        self._aging: asyncio.Task[None] | None = None
        # Renewals follow each other: each one ignores new connections, and then heeds them.
        self._renewing = asyncio.Lock()
        self._is_closing = False
        self._accepts = True

    async def open(self, tls: TlsOptions | None) -> None:
        """Listen, and accept connections.

        Raises:
            HostError: an address or the certificates cannot be used.
        """
        for name, each in self._sockets.items():
            listen(name, each)
        self._generations = await self._start(tls)
        self._tls = tls
        if self._age_s is not None:
            self._aging = asyncio.create_task(self._renew_by_age(self._age_s))

    async def renew(self, tls: TlsOptions | None) -> None:
        """Serve new connections with `tls`, and let the clients of older ones connect again.

        Returns once all new connections get `tls`. Until then the older generation may accept some, too.

        Raises:
            HostError: the certificates cannot be used. Nothing has changed.
        """
        async with self._renewing:
            if self._is_closing:
                return
            before, self._generations = self._generations, await self._start(tls)
            self._tls = tls
            accepts_no_more = asyncio.Event()
            self._begin(self._retire(before, accepts_no_more))
            await accepts_no_more.wait()

    def say_farewell(self) -> None:
        """Ask clients of HTTP/1.1 with every response to close their connection."""
        self._is_closing = True
        for generation in self._generations:
            generation.endpoint.say_farewell()

    def ignore_new_connections(self, *, for_good: bool) -> None:
        """Let new connections wait in the network until `close`, but accept those that are complete.

        `for_good`: no other process accepts from the sockets later.
        """
        self._accepts = False
        for each in self._sockets.values():
            ignore_new_connections(each, for_good=for_good)

    def take_farewells(self) -> int:
        """Return the number of responses that have asked for it since the last call."""
        return sum(generation.endpoint.take_farewells() for generation in self._generations)

    async def close(self) -> None:
        """Close the sockets, and wait until every connection has sent its last response. May be called again."""
        self._is_closing = True
        self._accepts = False
        if self._aging is not None:
            self._aging.cancel()
        for each in self._sockets.values():
            each.close()
        await asyncio.gather(*(generation.end() for generation in self._generations), *self._tasks)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _retire(self, generations: list[_Generation], accepts_no_more: asyncio.Event) -> None:
        for generation in generations:
            generation.endpoint.say_farewell()
        await asyncio.sleep(0.0 if self._is_closing else FAREWELL_S)
        # Generations accept from the same sockets, and a server drops what it has just accepted when it ends. Another
        # socket in place of its copy (`dup2`) does not help: its poller keeps the first, and refuses a later copy.
        for each in self._sockets.values() if self._accepts else ():
            ignore_new_connections(each, for_good=False)
        await asyncio.sleep(_FIRST_REQUEST_S)
        for generation in generations:
            generation.server.shutdown()
        for each in self._sockets.values() if self._accepts else ():
            heed_new_connections(each)
        accepts_no_more.set()
        await asyncio.gather(*(generation.end() for generation in generations))

    async def _renew_by_age(self, age_s: float) -> None:
        while True:
            await asyncio.sleep(age_s)
            await self._renew_for_sure()

    async def _renew_for_sure(self) -> None:
        """Renew with the same certificates. Try again if the system lacks something, such as descriptors."""
        while True:
            try:
                return await self.renew(self._tls)
            except HostError as error:
                _log.error("The HTTP server cannot start, and tries again: %s", error)
                await asyncio.sleep(_PAUSE_S)

    def _ended(self, serving: "asyncio.Task[None]") -> None:
        """Serve again after an error, which ends every connection: the process had no descriptor for a new one."""
        if self._is_closing or serving.cancelled() or (error := serving.exception()) is None:
            return
        if any(generation.serving is serving for generation in self._generations):
            _log.error("The HTTP server has ended and closed its connections: %s. It starts again", error)
            self._begin(self._renew_for_sure())

    async def _start(self, tls: TlsOptions | None) -> list[_Generation]:
        """Start a server for the TCP sockets, and one for the UNIX socket, which h2corn serves only without TLS."""
        unix = [each for each in self._sockets.values() if each.family == socket.AF_UNIX]
        tcp = [each for each in self._sockets.values() if each.family != socket.AF_UNIX]
        groups = [(tcp, tls), (unix, None)] if tls is not None else [([*tcp, *unix], None)]
        return [await self._start_one(sockets, tls) for sockets, tls in groups if sockets]

    async def _start_one(self, sockets: list[socket.socket], tls: TlsOptions | None) -> _Generation:
        loop = asyncio.get_running_loop()
        allow_quick_calls(loop)
        endpoint = self._make_endpoint(loop)
        config = replace(self._config, bind=tuple(f"fd://{each.fileno()}" for each in sockets))
        try:
            with _with_certificates(config, tls) as complete:
                server = h2corn.Server(endpoint, complete)
                serving = asyncio.create_task(server.serve())
                await server.wait_started()
        except (ValueError, OSError) as error:
            raise HostError(f"{'HTTP' if tls is None else tls.chain_name}: {error}.") from None
        serving.add_done_callback(self._ended)
        return _Generation(endpoint, server, serving)


def _config(options: HostOptions) -> h2corn.Config:
    arguments = known_arguments(options.grpc_arguments)
    idle_ms = arguments.get(IDLE_MS, IDLE_CONNECTION_S * 1000)
    return h2corn.Config(
        lifespan="off",
        access_log=False,
        grpc=True,
        runtime_threads=1,
        max_concurrent_streams=arguments.get(STREAMS, MAX_STREAMS_PER_CONNECTION),
        limit_connections=find_connection_limit(options),
        limit_request_head_size=_MAX_HEADER_BYTES,
        limit_request_line=_MAX_HEADER_BYTES,
        limit_request_fields=MAX_HEADERS_COUNT,
        limit_request_field_size=_MAX_HEADER_BYTES,
        h2_max_header_list_size=_MAX_HEADER_BYTES,
        h2_max_header_block_size=_MAX_HEADER_BYTES,
        h2_initial_stream_window_size=WINDOW_BYTES,
        h2_initial_connection_window_size=WINDOW_BYTES,
        # The application checks its limits, and answers with its errors.
        max_request_body_size=0,
        # By default, messages of gRPC may pause for ever.
        request_policies=tuple(
            h2corn.RequestPolicy(
                path=path,
                max_request_body_size=0,
                timeout_request_body_idle=REQUEST_TIMEOUT_S,
                h2_timeout_response_stall=options.write_timeout_s,
            )
            for path in sorted(INFERENCE_PATHS)
        ),
        timeout_handshake=min(options.header_timeout_s, _HANDSHAKE_S),
        timeout_request_header=options.header_timeout_s,
        timeout_request_body_idle=REQUEST_TIMEOUT_S,
        timeout_keep_alive=idle_ms / 1000,
        h2_timeout_response_stall=options.write_timeout_s,
        h2_timeout_write=0.0,
        timeout_graceful_shutdown=_FOREVER_S,
    )


@contextlib.contextmanager
def _with_certificates(config: h2corn.Config, tls: TlsOptions | None) -> Iterator[h2corn.Config]:
    """Yield `config` with certificates in files, which exist until h2corn has read them."""
    if tls is None:
        yield config
        return
    with contextlib.ExitStack() as stack:
        chain, key, ca = (
            None if text is None else Path(stack.enter_context(private_file(text)))
            for text in (tls.certificate_chain, tls.private_key, tls.client_ca)
        )
        yield replace(config, certfile=chain, keyfile=key, ca_certs=ca, cert_reqs="none" if ca is None else "required")
