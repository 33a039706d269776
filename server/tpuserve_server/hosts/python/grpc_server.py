"""gRPC server of the Python host: grpc.aio with the methods of both protocols."""

import asyncio
import contextlib

import grpc.aio

from tpuserve_server.hosts.addresses import cannot_listen, join
from tpuserve_server.hosts.application import Application, HostOptions
from tpuserve_server.hosts.certificates import Certificates
from tpuserve_server.hosts.grpc.grpcio_table import TableHandler
from tpuserve_server.hosts.grpc.limits import MAX_AGE, MAX_AGE_MS, channel_arguments
from tpuserve_server.hosts.in_flight import InFlight
from tpuserve_server.hosts.socket_file import SocketFile

# Maximum time for connections to close.
_CLOSE_S = 1.0
# A busy client sends its next call within this time.
_BUSY_S = 0.1
# grpcio varies the age of connections by up to 10 % (gRFC A9).
_AGE_TOLERANCE = 1.2


class GrpcServer:
    """grpc.aio with the method table, on a TCP port, a UNIX socket, both or neither."""

    def __init__(
        self,
        application: Application,
        options: HostOptions,
        in_flight: InFlight,
        file: SocketFile | None,
        certificates: Certificates | None,
    ) -> None:
        self._file = file
        self._table = TableHandler(application.rpc, in_flight, application.overload_gate, application.sending)
        self._server = grpc.aio.server(
            handlers=[self._table],
            options=list(channel_arguments(options).items()),
        )
        age_ms = dict(options.grpc_arguments).get(MAX_AGE)
        self._max_age_ms = age_ms if isinstance(age_ms, int) else MAX_AGE_MS
        self._credentials = None if certificates is None else certificates.credentials()
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

    async def outlive_connections(self, timeout_s: float) -> None:
        """Wait until the age of every connection has made its client connect to the other server."""
        if self.address is not None or self.socket_address is not None:
            await asyncio.sleep(min(_AGE_TOLERANCE * self._max_age_ms / 1000, timeout_s))

    async def begin_drain(self, farewell_s: float) -> None:
        """Refuse new calls until clients stop sending them, for at most `farewell_s`.

        grpcio's own stop cancels every call that it has read but not yet passed to its handler. A busy server has such
        calls, and clients do not retry their status.
        """
        self._table.refuse()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(farewell_s):
                await asyncio.sleep(_BUSY_S)
                while self._table.take_refused():  # noqa: ASYNC110  # It looks back at what came while it slept.
                    await asyncio.sleep(_BUSY_S)

    async def stop(self) -> None:
        """Close the port, and each connection after its last response."""
        await self._server.stop(_CLOSE_S)

    def _bind(self, address: str) -> int:
        try:
            if self._credentials is not None:
                return self._server.add_secure_port(address, self._credentials)
            return self._server.add_insecure_port(address)
        except RuntimeError:  # grpcio logs the reason, but the error does not contain it.
            raise cannot_listen(address, "gRPC") from None
