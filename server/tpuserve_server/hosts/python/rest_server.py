"""REST server of the Python host: uvicorn with the host's HTTP/1.1 protocol."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Iterator
from typing import TYPE_CHECKING

import uvicorn

from tpuserve_server.hosts.addresses import BACKLOG, join, listen
from tpuserve_server.hosts.application import Application, HostOptions
from tpuserve_server.hosts.certificates import Certificates
from tpuserve_server.hosts.http1.connection import Http1Protocol
from tpuserve_server.hosts.http1.limits import Http1Limits
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.limits import IDLE_CONNECTION_S, find_connection_limit
from tpuserve_server.hosts.rest_calls import RestCalls
from tpuserve_server.hosts.unread_body import BodyReceive
from tpuserve_server.hosts.unread_response import ChargedResponses

if TYPE_CHECKING:
    from starlette.types import Scope, Send

# Time between looks at the open connections.
_LOOK_S = 0.1


class RestServer(uvicorn.Server):
    """uvicorn in the host's event loop. The host handles the signals."""

    def __init__(
        self, application: Application, options: HostOptions, in_flight: InFlight, certificates: Certificates | None
    ) -> None:
        self._calls = RestCalls(application.rest, in_flight, application.overload_gate)
        super().__init__(
            uvicorn.Config(
                self._answer,
                http=Http1Protocol,
                ws="none",
                interface="asgi3",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=IDLE_CONNECTION_S,
            )
        )
        self._responses = ChargedResponses(application.sending)
        self._options = options
        self._certificates = certificates
        self._socket: socket.socket | None = None
        self._up = asyncio.Event()  # Set by `startup`, below.
        self._task: asyncio.Task[None] | None = None
        self.address: str | None = None
        if options.rest_port is not None:
            self._socket = listen(options.bind_address, options.rest_port, "REST", reuse_port=options.reuse_port)
            self.address = join(options.bind_address, self._socket.getsockname()[1])

    @property
    def connections(self) -> int:
        """Number of open connections. During `stop`, those that remain have a request or an unread response."""
        return len(self.server_state.connections)

    async def start(self) -> None:
        if self._socket is not None:
            self._task = asyncio.create_task(self.serve([self._socket]))
            await self._up.wait()

    async def stop(self, farewell_s: float) -> None:
        """Close the port, then the connections: ask with every response to close, then close idle ones, then wait.

        Clients have at most `farewell_s` to close idle connections themselves.
        """
        if self._task is None:
            return
        await self.say_farewell(farewell_s)
        self.should_exit = True
        await self._task

    async def say_farewell(self, timeout_s: float) -> None:
        """Close the port, ask clients with every response to close, and wait for them for at most `timeout_s`.

        The order matters. A client that closes its connection reconnects at once, and closing the port would reset
        connections in its backlog.
        """
        for server in self.servers if self._task is not None else ():
            server.close()
        if self._socket is not None:
            self._socket.close()
        self._calls.farewell = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.server_state.connections:  # noqa: ASYNC110  # uvicorn does not report the last one.
                    await asyncio.sleep(_LOOK_S)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen as uvicorn does, with limits of connections and handshakes that uvicorn has no options for."""
        self.servers = [await self._listen()]
        if self._certificates is not None:
            self._certificates.follow(self._listen_anew)
        self.started = True
        self._up.set()

    def _answer(self, scope: "Scope", receive: BodyReceive, send: "Send") -> "Awaitable[None]":
        return self._calls(scope, receive, self._responses.charged(scope, receive, send))

    async def _listen(self) -> asyncio.Server:
        """Accept connections with the current certificates, on a copy of the socket: its server closes it."""
        assert self._socket is not None
        header_timeout_s = self._options.header_timeout_s
        context = None if self._certificates is None else self._certificates.context()
        limits = Http1Limits(
            connections=find_connection_limit(self._options),
            head_s=header_timeout_s,
            unsent_s=self._options.write_timeout_s,
        )
        return await asyncio.get_running_loop().create_server(
            lambda: Http1Protocol(self.config, self.server_state, {}, limits=limits),
            sock=self._socket.dup(),
            backlog=BACKLOG,
            ssl=context,
            ssl_handshake_timeout=None if context is None else header_timeout_s,
        )

    async def _listen_anew(self) -> None:
        """Use the new certificates for new connections. The two servers share the backlog, so none is lost."""
        if self._calls.farewell or self.should_exit:
            return  # The port is closed.
        before, self.servers = self.servers, [await self._listen()]
        for server in before:
            server.close()
