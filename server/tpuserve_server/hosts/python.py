"""The Python host: grpc.aio and uvicorn on one uvloop. It runs on every platform with Python, and is easy to debug."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

import click
import grpc.aio
import uvicorn
import uvloop

from tpuserve_server.hosts.addresses import BACKLOG, cannot_listen, check_free, join, listen
from tpuserve_server.hosts.application import Application, HostOptions, Listening
from tpuserve_server.hosts.ending import CUT_TIMEOUT_S, end_process, stop_in_time
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.grpc.grpcio_table import TableHandler
from tpuserve_server.hosts.http1.connection import Http1Protocol
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.rest_calls import RestCalls
from tpuserve_server.hosts.socket_file import SocketFile, socket_file
from tpuserve_server.hosts.stop_signals import StopSignals
from tpuserve_server.hosts.tls import TlsOptions, server_context

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_log = logging.getLogger(__name__)

# Clients should close idle connections themselves: when the server closes one, a request may be on its way.
_KEEP_ALIVE_S = 3600
# Time for busy clients to get a response that asks them to disconnect, before the server closes connections.
_FAREWELL_S = 1.0
# A busy gRPC client sends its next call within this time.
_BUSY_S = 0.1


def run(application_factory: Callable[[], Application], options: HostOptions) -> int:
    """Serve until SIGTERM or SIGINT, drain, and return the exit code. Blocks; call it on the main thread.

    `application_factory` is called on the event loop, after a check that the ports are free. A second signal ends the
    process at once. If the drain or the stop does not end in time, this function ends the process instead of returning.
    """
    try:
        check_free(options)
        if options.tls is not None:
            server_context(options.tls)  # Checks the certificates: gRPC's errors do not name the cause.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(application_factory, options))
    except HostError as error:
        _complain(error)
        return 1


async def _serve(application_factory: Callable[[], Application], options: HostOptions) -> int:
    signals = StopSignals(end_process)
    application = application_factory()
    await application.start()
    code, in_order = 0, False
    try:
        in_order = await _carry(application, options, signals)
    except Exception as error:  # The process must end after every error; threads that still run may block it.
        code = _complain(error)
    try:
        in_order &= await stop_in_time(application)
    except Exception as error:  # The process must end after this error, too.
        code = _complain(error)
    if not in_order:
        end_process(code)
    return code


def _complain(error: Exception) -> int:
    """Report an error, in one line if it is for the operator, and return the exit code."""
    if isinstance(error, HostError):
        click.echo(f"tpuserve: {error}", err=True)
    else:
        _log.error("The server stops after an unexpected error", exc_info=error)
    return 1


async def _carry(application: Application, options: HostOptions, signals: StopSignals) -> bool:
    """Open the ports, serve until a signal, and drain. Return whether every call was answered in time.

    Raises HostError if the application can no longer begin to serve: then there is nothing to drain.
    """
    if options.opens_when_ready and await _stopped_before(application.ready(), application, signals):
        return True
    with socket_file(options) as file:
        return await _open_and_serve(application, options, signals, file)


async def _open_and_serve(
    application: Application, options: HostOptions, signals: StopSignals, file: SocketFile | None
) -> bool:
    in_flight = InFlight()
    grpc_server = _GrpcServer(application, options, in_flight, file)
    rest_server = _RestServer(application.rest, options, in_flight)
    await grpc_server.start()
    await rest_server.start()
    tls = options.tls is not None
    application.announce(Listening(grpc_server.address, rest_server.address, grpc_server.socket_address, tls))
    await _stopped_before(asyncio.Future(), application, signals)
    application.drain()
    await asyncio.sleep(options.drain_delay_s)
    return await _drain(grpc_server, rest_server, in_flight, options.drain_timeout_s)


async def _stopped_before(event: Awaitable[None], application: Application, signals: StopSignals) -> bool:
    """Wait for `event` or a stop signal. Return whether the signal came first.

    Raises HostError if the application can no longer begin to serve.
    """
    waiting = asyncio.ensure_future(event)
    stopping = asyncio.create_task(signals.first())
    failing = asyncio.create_task(application.failure())
    tasks = {waiting, stopping, failing}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if failing.done() and not stopping.done():
            raise HostError(failing.result())
        return stopping.done()
    finally:
        for task in tasks:
            task.cancel()


async def _drain(grpc_server: "_GrpcServer", rest_server: "_RestServer", in_flight: InFlight, timeout_s: float) -> bool:
    """Stop new calls, wait for calls in flight, cancel the rest after `timeout_s`, and close the ports."""
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.gather(grpc_server.begin_drain(), rest_server.stop(), in_flight.finish())
    except TimeoutError:
        click.echo(f"tpuserve: Cancelled the requests that were still in flight after {timeout_s:g} s.", err=True)
    else:
        await grpc_server.stop()
        return True
    in_flight.cut()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CUT_TIMEOUT_S):
            await in_flight.finish()
            await grpc_server.stop()
    return False


class _GrpcServer:
    """grpc.aio with the method table, on a TCP port, a UNIX socket, both or neither."""

    def __init__(
        self, application: Application, options: HostOptions, in_flight: InFlight, file: SocketFile | None
    ) -> None:
        self._file = file
        self._table = TableHandler(application.rpc, in_flight)
        self._server = grpc.aio.server(
            handlers=[self._table],
            options=list(_channel_arguments(options).items()),
        )
        self._credentials = None if options.tls is None else _credentials(options.tls)
        self.address: str | None = None
        self.socket_address = None if file is None else file.address
        if options.grpc_port is not None:
            port = self._bind(join(options.bind_address, options.grpc_port))
            self.address = join(options.bind_address, port)
        if file is not None:
            file.check()
            self._bind(f"unix:{file.bound}")

    async def start(self) -> None:
        await self._server.start()
        if self._file is not None:
            self._file.publish()

    async def begin_drain(self) -> None:
        """Refuse new calls until clients stop sending them, for at most one second.

        grpcio's own stop cancels every call that it has read but not yet passed to its handler. A busy server has such
        calls, and clients do not retry their status.
        """
        self._table.refuse()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                await asyncio.sleep(_BUSY_S)
                while self._table.take_refused():  # noqa: ASYNC110  # It looks back at what came while it slept.
                    await asyncio.sleep(_BUSY_S)

    async def stop(self) -> None:
        """Close the port, and each connection after its last response."""
        await self._server.stop(_FAREWELL_S)

    def _bind(self, address: str) -> int:
        try:
            if self._credentials is not None:
                return self._server.add_secure_port(address, self._credentials)
            return self._server.add_insecure_port(address)
        except RuntimeError:  # grpcio logs the reason, but the error does not contain it.
            raise cannot_listen(address, "gRPC") from None


def _channel_arguments(options: HostOptions) -> dict[str, int | str]:
    return {
        "grpc.max_receive_message_length": options.max_message_bytes,
        "grpc.max_send_message_length": -1,
        # A second server on the same port must fail instead of taking every other connection.
        "grpc.so_reuseport": 0,
        **dict(options.grpc_arguments),
    }


def _credentials(tls: TlsOptions) -> grpc.ServerCredentials:
    ca = tls.client_ca.encode() if tls.client_ca is not None else None
    pair = (tls.private_key.encode(), tls.certificate_chain.encode())
    return grpc.ssl_server_credentials([pair], ca, require_client_auth=ca is not None)


class _RestServer(uvicorn.Server):
    """uvicorn in the host's event loop. The host handles the signals."""

    def __init__(self, app: "ASGIApp", options: HostOptions, in_flight: InFlight) -> None:
        self._calls = RestCalls(app, in_flight)
        super().__init__(
            uvicorn.Config(
                self._calls,
                http=Http1Protocol,
                ws="none",
                interface="asgi3",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=_KEEP_ALIVE_S,
            )
        )
        self._tls = options.tls
        self._socket: socket.socket | None = None
        self._up = asyncio.Event()  # Set by `startup`, below.
        self._task: asyncio.Task[None] | None = None
        self.address: str | None = None
        if options.rest_port is not None:
            self._socket = listen(options.bind_address, options.rest_port, "REST")
            self.address = join(options.bind_address, self._socket.getsockname()[1])

    async def start(self) -> None:
        if self._socket is not None:
            self._task = asyncio.create_task(self.serve([self._socket]))
            await self._up.wait()

    async def stop(self) -> None:
        """Close the port, then the connections: ask with every response to close, then close idle ones, then wait.

        The order matters. A client that closes its connection reconnects at once, and closing the port would reset
        connections in its backlog.
        """
        if self._task is None:
            return
        for server in self.servers:
            server.close()
        self._calls.farewell = True
        if self.server_state.connections:
            await asyncio.sleep(_FAREWELL_S)
        self.should_exit = True
        await self._task

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._tls is not None:
            # uvicorn keeps the context that it would create from files in this attribute.
            self.config.ssl = server_context(self._tls)
        await super().startup(sockets)
        self._up.set()
