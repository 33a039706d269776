"""Supervisor of the Envoy host: starts Envoy with the application inside, again after each unexpected end.

It turns signals into orders, and cleans up. The process is light: it imports neither tensorflow nor the application,
and handles no requests.
"""

import asyncio
import contextlib
import dataclasses
import http.client
import logging
import os
from collections.abc import Callable, Mapping

from tpuserve_server.core.library_pages import release_library_pages
from tpuserve_server.core.runtime_folder import RuntimeFolder, remove_stale_folders, runtime_folder
from tpuserve_server.hosts.addresses import check_free
from tpuserve_server.hosts.application import HostOptions, Listening
from tpuserve_server.hosts.certificate_poll import CertificatePoll
from tpuserve_server.hosts.certificate_replacement import check_replacement
from tpuserve_server.hosts.certificate_validity import certificate_status
from tpuserve_server.hosts.ending import LOST_REQUESTS
from tpuserve_server.hosts.envoy.channel import LAST_END_VARIABLE, RUNTIME_FOLDER_VARIABLE
from tpuserve_server.hosts.envoy.config import Embedding
from tpuserve_server.hosts.envoy.process import embedding_library
from tpuserve_server.hosts.envoy.respawn import Respawns
from tpuserve_server.hosts.envoy.worker import Worker
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.grpc.arguments import unknown_to_envoy
from tpuserve_server.hosts.handover import CONNECT_S, QUEUE_TIMEOUT_S
from tpuserve_server.hosts.predecessor import Predecessor
from tpuserve_server.hosts.service_manager import report
from tpuserve_server.hosts.signals import HostSignals, ignore_until_serving
from tpuserve_server.hosts.socket_file import MAX_SOCKET_PATH_BYTES, SocketFile, socket_file
from tpuserve_server.hosts.tls import TlsOptions, server_context
from tpuserve_server.logs.logger_names import COMMAND

_log = logging.getLogger(__name__)
_command = logging.getLogger(COMMAND)
_LONGEST_SOCKET = "admin.sock"


def run(
    asgi_entry: str,
    options: HostOptions,
    environment: Mapping[str, str],
    read_tls: Callable[[], TlsOptions] | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT, drain, and return the exit code. Blocks; call it on the main thread.

    `read_tls` reads the certificates again for SIGHUP. It raises HostError if they cannot be read.

    `asgi_entry` names an `EnvoyEntry` as `module:attribute`. Its factory finds `environment` in `os.environ`, in
    addition to this process's environment. A second signal kills Envoy at once.
    """
    ignore_until_serving()
    for name in unknown_to_envoy(options.grpc_arguments):
        _command.warning("%s has no effect in Envoy. Use --host_backend=python for it.", name)
    try:
        _check_rest_server(options)
        check_free(options)
        if options.tls is not None:
            server_context(options.tls)  # Checks the certificates: Envoy does not report their errors in one line.
        predecessor = Predecessor.of(options)
        embedding = Embedding(embedding_library(), asgi_entry)
        remove_stale_folders()
        longest = MAX_SOCKET_PATH_BYTES - len(os.sep) - len(_LONGEST_SOCKET)
        release_library_pages()  # The supervisor's own start used most of them.
        with runtime_folder(max_path_bytes=longest) as folder, socket_file(options) as file:
            launcher = _Launcher(embedding, folder)
            supervisor = _Supervisor(options, launcher, file, environment, read_tls, predecessor)
            return asyncio.run(supervisor.run())
    except HostError as error:
        _command.error("%s", error)
        return 1


@dataclasses.dataclass(frozen=True, slots=True)
class _Launcher:
    """Starts a worker."""

    embedding: Embedding
    folder: RuntimeFolder

    async def start(self, options: HostOptions, environment: Mapping[str, str], last_end: str) -> Worker:
        environment = {
            **environment,
            RUNTIME_FOLDER_VARIABLE: str(self.folder.path),
            LAST_END_VARIABLE: last_end,
        }
        return await Worker.start(options, self.embedding, self.folder, environment, is_respawn=bool(last_end))


class _Supervisor:
    """Runs one worker after the other."""

    def __init__(
        self,
        options: HostOptions,
        launcher: _Launcher,
        file: SocketFile | None,
        environment: Mapping[str, str],
        read_tls: Callable[[], TlsOptions] | None,
        predecessor: Predecessor | None,
    ) -> None:
        # Envoy binds a temporary name. The supervisor renames the socket once Envoy listens.
        self._options = dataclasses.replace(options, grpc_socket_path=file.bound if file is not None else None)
        self._file = file
        self._launcher = launcher
        self._environment = environment
        self._predecessor = predecessor
        self._worker: Worker | None = None
        self._last_end = ""
        self._read_tls = read_tls
        self._reloading: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Serve, drain and stop. Raises HostError if the first worker cannot start or serve."""
        signals = HostSignals(force=self._force, reload=self._reload)
        stopping = asyncio.create_task(signals.first())
        respawns = Respawns()
        try:
            with self._polled_certificates():
                while (code := await self._run_worker(stopping)) is None:
                    assert self._worker is not None
                    await asyncio.wait({stopping}, timeout=respawns.pause_s(self._worker.lived_s))
                    if stopping.done():
                        return 0  # No process runs, so there is nothing to drain.
                return code
        finally:
            stopping.cancel()

    async def _run_worker(self, stopping: asyncio.Task[None]) -> int | None:
        """Run a worker until its end. Return the exit code after a drain, or None after an unexpected end."""
        is_respawn = bool(self._last_end)
        worker = await self._launcher.start(self._options, self._environment, self._last_end)
        self._worker = worker
        self._show_certificates()
        announcing = asyncio.create_task(self._announce(worker))
        try:
            await asyncio.wait({announcing, stopping, worker.ended}, return_when=asyncio.FIRST_COMPLETED)
            if announcing.done():
                _raise_refusal(announcing, worker)
                await asyncio.wait({stopping, worker.ended}, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                return await self._stop(worker)
            await worker.last_words()
            self._explain_end(worker, is_respawn=is_respawn)
            return None
        finally:
            announcing.cancel()
            await worker.close()

    async def _announce(self, worker: Worker) -> None:
        listening = await worker.listening(self._options)
        # A later worker opens the same ports.
        self._options = _with_ports(self._options, listening)
        if self._file is not None:
            self._file.publish()
            listening = dataclasses.replace(listening, grpc_socket=self._file.address)
        worker.opened(listening)
        report("READY")
        if self._predecessor is not None:
            self._predecessor.stop()

    async def _stop(self, worker: Worker) -> int:
        """Wait for the application to drain and to end Envoy, too, and return the exit code."""
        report("STOPPING")
        worker.drain()
        if not (worker.is_live or worker.is_loading):
            worker.kill()  # No port is open and no model is loading: there is nothing to drain or to stop.
            return 0
        await asyncio.wait({worker.ended}, timeout=self._patience_s(worker.stop_timeout_s))
        if not worker.ended.done():
            raise HostError("The application did not end after the drain. The server killed it.")
        code = worker.ended.result()
        if code >= 0:
            return code
        _log.error("%s ended during the drain (%s); requests in flight are lost", worker.name, worker.how_ended())
        return LOST_REQUESTS

    def _explain_end(self, worker: Worker, *, is_respawn: bool) -> None:
        """Log why a worker ended. Raises HostError if it is the first, and a new start would end the same way."""
        self._last_end = how = worker.how_ended()
        if not is_respawn and worker.failure is not None:
            raise HostError(worker.failure)
        if not is_respawn and not worker.began():
            raise HostError(f"{worker.name} could not start ({how}). {worker.start_hint}")
        if worker.damage is not None:
            _log.error("%s has drained and ended (%s). The server starts it again", worker.name, worker.damage.why)
        elif worker.failure is not None:
            _log.error("The application could not start again: %s", worker.failure)
        elif worker.is_live:
            _log.error(
                "%s ended by itself (%s); the requests in flight are lost. The server starts it again", worker.name, how
            )
        else:
            _log.error("%s ended by itself (%s) before it served. The server starts it again", worker.name, how)

    def _patience_s(self, stop_timeout_s: float) -> float:
        handover_s = CONNECT_S + QUEUE_TIMEOUT_S
        return max(self._options.drain_delay_s, handover_s) + self._options.drain_timeout_s + stop_timeout_s

    def _reload(self) -> None:
        _log.info("SIGHUP: reading the configuration again")
        if self._worker is not None:  # Otherwise the next worker reads it at its start.
            self._worker.reload()
        self._begin_reload_of_certificates()

    def _polled_certificates(self) -> contextlib.AbstractContextManager[None]:
        """Reload the certificates when their file changes."""
        if self._read_tls is None or self._options.tls is None:
            return contextlib.nullcontext()
        poll = CertificatePoll(self._read_tls, self._options.tls_poll_wait_s, self._begin_reload_of_certificates)
        return poll.running(self._options.tls)

    def _begin_reload_of_certificates(self) -> None:
        if self._read_tls is None or self._options.tls is None:
            return
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.create_task(self._reload_certificates(self._read_tls))

    async def _reload_certificates(self, read_tls: Callable[[], TlsOptions]) -> None:
        """Read the certificates again, and use them for new connections. Errors change nothing."""
        try:
            tls = await asyncio.to_thread(check_replacement, read_tls, self._options.tls)
            if self._worker is not None and self._worker.is_live and not await self._worker.replace_certificates(tls):
                raise HostError("Envoy did not read them in time.")
        except (HostError, OSError, http.client.HTTPException) as error:
            _log.error("The server keeps its certificates: %s", error)
            self._show_certificates(str(error))
            return
        # For later workers.
        self._options = dataclasses.replace(self._options, tls=tls)
        self._show_certificates()
        _log.info("New connections use the certificates that were read again")

    def _show_certificates(self, reload_failure: str = "") -> None:
        if self._worker is not None and self._options.tls is not None:
            self._worker.show_certificates(certificate_status(self._options.tls, reload_failure))

    def _force(self, code: int) -> None:
        if self._worker is not None:
            self._worker.kill()
        self._launcher.folder.remove()
        logging.shutdown()
        os._exit(code)


def _with_ports(options: HostOptions, listening: Listening) -> HostOptions:
    """Return the options with the ports that the kernel chose for port 0."""
    return dataclasses.replace(
        options,
        grpc_port=None if listening.grpc is None else _port(listening.grpc),
        rest_port=None if listening.rest is None else _port(listening.rest),
    )


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _check_rest_server(options: HostOptions) -> None:
    """Raise HostError for options that only Envoy's REST supports."""
    if options.rest_server == "envoy":
        return
    needs_envoy = {
        "--ssl_config_file": options.tls is not None,
        "--reuse_port": options.reuse_port,
        "--max_requests_per_second": options.max_requests_per_s > 0,
        "--max_heap_bytes": options.max_heap_bytes > 0,
    }
    if given := [flag for flag, is_given in needs_envoy.items() if is_given]:
        raise HostError(f"--rest_server=python and {given[0]} exclude each other. Omit one.")
    if options.grpc_port is None and options.grpc_socket_path is None:
        raise HostError(
            "--rest_server=python leaves Envoy without a port. Set a gRPC port, or use --host_backend=python."
        )


def _raise_refusal(announcing: asyncio.Task[None], worker: Worker) -> None:
    """Raise the HostError of a socket that cannot be published. Kill an Envoy that does not answer while it starts."""
    try:
        announcing.result()
    except (OSError, http.client.HTTPException) as error:
        if not worker.ended.done():
            _log.error("Envoy's admin interface does not respond: %s", error)
            worker.kill()
