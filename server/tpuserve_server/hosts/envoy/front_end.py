"""FrontEnd: one place among the front-ends of a server. It runs one Envoy process after the other."""

import asyncio
import contextlib
import dataclasses
import http.client
import logging
import socket
from collections.abc import Callable, Mapping

from tpuserve_server.core.runtime_folder import RuntimeFolder
from tpuserve_server.hosts.application import HostOptions, Listening
from tpuserve_server.hosts.envoy.config import Embedding
from tpuserve_server.hosts.envoy.respawn import Respawns
from tpuserve_server.hosts.envoy.worker import Worker
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.socket_file import SocketFile
from tpuserve_server.hosts.tls import TlsOptions

_log = logging.getLogger(__name__)


class FrontEnd:
    """Keeps a worker running until the drain. One event loop's thread owns it.

    `opened` has the addresses once the first worker listens.
    """

    def __init__(
        self,
        number: int,
        embedding: Embedding,
        folder: RuntimeFolder,
        environment: Mapping[str, str],
        file: SocketFile | None,
        pass_link: Callable[[socket.socket], None],
    ) -> None:
        """Choose the place. `pass_link` gives the engine its end of a link. Later workers publish `file` again."""
        self.number = number
        self.opened: asyncio.Future[Listening] = asyncio.get_running_loop().create_future()
        # How the last worker ended, if a signal ended it during the drain.
        self.how_lost = ""
        self._embedding = embedding
        self._folder = folder.part(str(number))
        self._environment = environment
        self._file = file
        self._pass_link = pass_link
        self._worker: Worker | None = None
        # Certificates that have replaced those of the options.
        self._tls: TlsOptions | None = None
        self._is_live = False
        self._draining = asyncio.Event()
        self._announced: Listening | None = None

    @property
    def is_live(self) -> bool:
        """Whether a worker listens now."""
        return self._is_live

    async def run(self, options: HostOptions) -> int:
        """Run workers until the drain, and return the exit code of the last one. A cancellation kills the worker.

        Raises:
            HostError, OSError: the first worker cannot start, so that others cannot either.
        """
        self._options = dataclasses.replace(options, tls=self._tls or options.tls)
        respawns = Respawns()
        while (code := await self._run_worker()) is None:
            lived_s = 0.0 if self._worker is None else self._worker.lived_s
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._draining.wait(), respawns.pause_s(lived_s))
            if self._draining.is_set():
                return 0  # No process runs, so there is nothing to drain.
            # A later worker opens the same ports.
            options = with_ports(self._options, self.opened.result())
            self._options = dataclasses.replace(options, tls=self._tls or options.tls)
        return code

    def announce(self, listening: Listening) -> None:
        """Report the addresses of the server to this worker and to later ones."""
        self._announced = listening if self._options.grpc_socket_path else _without_socket(listening)
        if self._worker is not None and self._is_live:
            self._worker.opened(self._announced)

    def drain(self) -> None:
        """Order the worker to drain, and start no other."""
        self._draining.set()

    def reload(self) -> None:
        """Order the worker to read its configuration again. A later one reads it at its start."""
        if self._worker is not None:
            self._worker.reload()

    def kill(self) -> None:
        """Kill the worker, if one runs."""
        if self._worker is not None:
            self._worker.kill()

    async def replace_certificates(self, tls: TlsOptions) -> bool:
        """Let this worker and later ones use other certificates. Return whether Envoy has read them in time.

        Raises:
            OSError, http.client.HTTPException: Envoy's admin interface does not respond.
        """
        self._tls = tls
        return self._worker is None or not self._is_live or await self._worker.replace_certificates(tls)

    async def _run_worker(self) -> int | None:
        """Run a worker until its end. Return the exit code after a drain, or None after an unexpected end."""
        try:
            worker = await self._start()
        except OSError as error:
            if not self.opened.done():
                raise
            _log.error("Front-end %d could not start again: %s", self.number, error)
            return None
        opening = asyncio.create_task(self._open(worker, self._options))
        draining = asyncio.create_task(self._draining.wait())
        try:
            await asyncio.wait({opening, draining, worker.ended}, return_when=asyncio.FIRST_COMPLETED)
            if not draining.done() and not worker.ended.done():
                await asyncio.wait({draining, worker.ended}, return_when=asyncio.FIRST_COMPLETED)
            if not worker.ended.done():
                return await self._drain(worker, opening)
            await worker.last_words()
            self._explain_end(worker)
            return None
        finally:
            self._is_live = False
            opening.cancel()
            draining.cancel()
            await worker.close()

    async def _start(self) -> Worker:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            self._pass_link(ours)
            self._worker = await Worker.start(
                self._options,
                self._embedding,
                self._folder,
                self._environment,
                is_respawn=self.opened.done(),
                link=theirs.fileno(),
            )
        return self._worker

    async def _open(self, worker: Worker, options: HostOptions) -> None:
        """Wait until the worker listens. Kill an Envoy that does not answer while it starts."""
        try:
            listening = await worker.listening(options)
            self._is_live = True
            if self._tls is not None and self._tls is not options.tls:
                await worker.replace_certificates(self._tls)
        except (OSError, http.client.HTTPException) as error:
            if not worker.ended.done():
                _log.error("Envoy's admin interface does not respond: %s", error)
                worker.kill()
            return
        if self._announced is not None:
            self._publish_again()
            worker.opened(self._announced)
        elif not self.opened.done():
            self.opened.set_result(listening)

    def _publish_again(self) -> None:
        if self._file is None:
            return
        try:
            self._file.publish()
        except HostError as error:  # The ports still serve.
            _log.error("%s", error)

    async def _drain(self, worker: Worker, opening: "asyncio.Task[None]") -> int:
        """Drain a worker, and return its exit code. A negative one means that requests are lost."""
        if not worker.ready.is_set():
            worker.kill()  # Its ports are not open.
            return 0
        await asyncio.wait({opening, worker.ended}, return_when=asyncio.FIRST_COMPLETED)
        worker.drain()
        code = await worker.ended
        if code < 0:
            self.how_lost = worker.how_ended()
        return code

    def _explain_end(self, worker: Worker) -> None:
        """Log why a worker ended. Raises HostError if it is the first, and a new start would end the same way."""
        is_first, how = not self.opened.done(), worker.how_ended()
        if is_first and worker.failure is not None:
            raise HostError(worker.failure)
        if is_first:
            raise HostError(f"Envoy could not start ({how}). {worker.start_hint}")
        if worker.failure is not None:
            _log.error("Front-end %d could not start again: %s", self.number, worker.failure)
        elif self._is_live:
            _log.error(
                "Front-end %d ended by itself (%s); its requests in flight are lost. The server starts it again",
                self.number,
                how,
            )
        else:
            _log.error(
                "Front-end %d ended by itself (%s) before it served. The server starts it again", self.number, how
            )


def with_ports(options: HostOptions, listening: Listening) -> HostOptions:
    """Return the options with the ports that the kernel chose for port 0."""
    return dataclasses.replace(
        options,
        grpc_port=None if listening.grpc is None else _port(listening.grpc),
        rest_port=None if listening.rest is None else _port(listening.rest),
    )


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _without_socket(listening: Listening) -> Listening:
    return dataclasses.replace(listening, grpc_socket=None)
