"""Carries an application on the Python host, from its start to the end of the process."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import uvloop

from tpuserve_server.core.runtime_folder import remove_stale_folders
from tpuserve_server.hosts.addresses import check_free, is_loopback
from tpuserve_server.hosts.application import Application, HostOptions, Listening
from tpuserve_server.hosts.certificates import Certificates
from tpuserve_server.hosts.ending import CUT_TIMEOUT_S, LOST_REQUESTS, end_process, stop_in_time
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.handover import FAREWELL_S, Handover
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.predecessor import Predecessor
from tpuserve_server.hosts.python.grpc_server import GrpcServer
from tpuserve_server.hosts.python.rest_server import RestServer
from tpuserve_server.hosts.service_manager import report
from tpuserve_server.hosts.signals import HostSignals, ignore_until_serving
from tpuserve_server.hosts.socket_file import socket_file
from tpuserve_server.hosts.tls import TlsOptions, server_context
from tpuserve_server.logs.logger_names import COMMAND

_log = logging.getLogger(__name__)
_command = logging.getLogger(COMMAND)

# Maximum time for busy clients to get a response that asks them to disconnect, and to stop sending calls, before the
# server closes connections. At most half of the drain timeout: a client without a request must not exhaust it.
_FAREWELL_S = 1.0

_OPEN_NETWORK = (
    "The Python host accepts clients at %s. It does not limit the memory of unfinished gRPC messages. Use the Envoy "
    "host on networks with clients that you do not trust"
)


def run(
    application_factory: Callable[[], Application],
    options: HostOptions,
    read_tls: Callable[[], TlsOptions] | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT, drain, and return the exit code. Blocks; call it on the main thread.

    `application_factory` is called on the event loop, after a check that the ports are free. `read_tls` reads the
    certificates again for SIGHUP, and raises HostError if it cannot. A second signal ends the process at once. If the
    drain or the stop does not end in time, this function ends the process instead of returning.
    """
    ignore_until_serving()
    try:
        check_free(options)
        predecessor = Predecessor.of(options)
        remove_stale_folders()
        if options.tls is not None:
            server_context(options.tls)  # Checks the certificates: gRPC's errors do not name the cause.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(application_factory, options, read_tls, predecessor))
    except HostError as error:
        _complain(error)
        return 1


async def _serve(
    application_factory: Callable[[], Application],
    options: HostOptions,
    read_tls: Callable[[], TlsOptions] | None,
    predecessor: Predecessor | None,
) -> int:
    return await _Carrier(application_factory, options, read_tls, predecessor).run()


def _complain(error: Exception) -> int:
    """Report an error, in one line if it is for the operator, and return the exit code."""
    if isinstance(error, HostError):
        _command.error("%s", error)
    else:
        _log.error("The server stops after an unexpected error", exc_info=error)
    return 1


class _Carrier:
    """Carries one application. Constructed and run on the event loop."""

    def __init__(
        self,
        application_factory: Callable[[], Application],
        options: HostOptions,
        read_tls: Callable[[], TlsOptions] | None,
        predecessor: Predecessor | None,
    ) -> None:
        self._options = options
        self._predecessor = predecessor
        # The handlers run on this loop, so not before `_application` exists.
        self._signals = HostSignals(force=end_process, reload=self._reload)
        self._application = application = application_factory()
        self._certificates = (
            None if options.tls is None else Certificates(options.tls, read_tls, application.show_certificates)
        )
        self._in_flight = InFlight()

    async def run(self) -> int:
        """Start the application, serve, drain and stop. Return the exit code, or end the process if a part hangs."""
        await self._application.start()
        code, in_order = 0, False
        try:
            in_order = await self._carry()
            code = 0 if in_order else LOST_REQUESTS
        except Exception as error:  # The process must end after every error; threads that still run may block it.
            code = _complain(error)
        try:
            in_order &= await stop_in_time(self._application)
        except Exception as error:  # The process must end after this error, too.
            code = _complain(error)
        if not in_order:
            end_process(code)
        return code

    async def _carry(self) -> bool:
        """Open the ports, serve until a signal, and drain. Return whether every call was answered in time.

        Raises HostError if the application can no longer begin to serve: then there is nothing to drain.
        """
        if self._options.opens_when_ready and await self._stopped_before(self._application.ready()):
            return True
        with socket_file(self._options) as file:
            grpc_server = GrpcServer(self._application, self._options, self._in_flight, file, self._certificates)
            rest_server = RestServer(self._application, self._options, self._in_flight, self._certificates)
            await grpc_server.start()
            await rest_server.start()
            with self._polled_certificates():
                await self._serve(grpc_server, rest_server)
            return await self._drain(grpc_server, rest_server)

    async def _serve(self, grpc_server: GrpcServer, rest_server: RestServer) -> None:
        """Announce the open ports and serve until a signal. Then wait for load balancers and for a successor."""
        if not is_loopback(self._options):
            _log.warning(_OPEN_NETWORK, self._options.bind_address)
        tls = self._options.tls is not None
        listening = Listening(grpc_server.address, rest_server.address, grpc_server.socket_address, tls)
        handover = Handover(self._options)
        handover.begin(listening)
        self._application.announce(listening)
        report("READY")
        if self._predecessor is not None:
            self._predecessor.stop()
        await self._stopped_before(asyncio.Future())
        report("STOPPING")
        self._application.drain()
        has_successor, _ = await asyncio.gather(handover.end(), asyncio.sleep(self._options.drain_delay_s))
        if has_successor and self._options.reuse_port:
            await asyncio.gather(
                grpc_server.outlive_connections(self._options.drain_timeout_s), rest_server.say_farewell(FAREWELL_S)
            )

    async def _drain(self, grpc_server: GrpcServer, rest_server: RestServer) -> bool:
        """Stop new calls, wait for calls in flight, cancel the rest after the drain timeout, and close the ports."""
        timeout_s = self._options.drain_timeout_s
        farewell_s = min(_FAREWELL_S, timeout_s / 2)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(
                    grpc_server.begin_drain(farewell_s), rest_server.stop(farewell_s), self._in_flight.finish()
                )
        except TimeoutError:
            _command.error("Cancelled the requests that were still in flight after %g s.", timeout_s)
        else:
            await grpc_server.stop()
            return True
        self._in_flight.cut()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CUT_TIMEOUT_S):
                await self._in_flight.finish()
                await grpc_server.stop()
        return False

    async def _stopped_before(self, event: Awaitable[None]) -> bool:
        """Wait for `event` or a stop signal. Return whether the signal came first.

        Raises HostError if the application can no longer begin to serve.
        """
        waiting = asyncio.ensure_future(event)
        stopping = asyncio.create_task(self._signals.first())
        failing = asyncio.create_task(self._application.failure())
        tasks = {waiting, stopping, failing}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if failing.done() and not stopping.done():
                raise HostError(failing.result())
            return stopping.done()
        finally:
            for task in tasks:
                task.cancel()

    def _polled_certificates(self) -> contextlib.AbstractContextManager[None]:
        if self._certificates is None:
            return contextlib.nullcontext()
        return self._certificates.polled(self._options.tls_poll_wait_s)

    def _reload(self) -> None:
        self._application.reload()
        if self._certificates is not None:
            self._certificates.reload()
