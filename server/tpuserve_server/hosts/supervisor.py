"""Supervisor: keeps the sockets of the server, and starts its serving process again after each unexpected end.

Clients then wait in the queue of a socket instead of being refused. The supervisor turns signals into orders, and
cleans up. Its process is light: it imports neither tensorflow nor the application, and handles no requests.
"""

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping
from typing import Final, Literal

from tpuserve_server.core.system.memory import release_library_pages
from tpuserve_server.core.system.runtime_folder import RuntimeFolder, remove_stale_folders, runtime_folder
from tpuserve_server.hosts.addresses import MAX_SOCKET_PATH_BYTES, SocketFile, bound, listening, socket_file
from tpuserve_server.hosts.announcement import Announcement
from tpuserve_server.hosts.application import HostError, HostOptions
from tpuserve_server.hosts.certificates import check_usable
from tpuserve_server.hosts.channel import (
    LAST_END_VARIABLE,
    LOST_REQUESTS,
    RUNTIME_FOLDER_VARIABLE,
    SERVICE_MANAGER_VARIABLE,
)
from tpuserve_server.hosts.child import Child
from tpuserve_server.hosts.handover import CONNECT_S, QUEUE_TIMEOUT_S, Predecessor
from tpuserve_server.observe.logs.log_format import COMMAND

_STOP = (signal.SIGTERM, signal.SIGINT)
# Signals that other servers use, for example to reopen log files. By default they end a process.
_WITHOUT_EFFECT = (signal.SIGUSR1,)


def ignore_until_serving() -> None:
    """Ignore SIGHUP and SIGUSR1 until `HostSignals` handles them. The start reads the configuration anyway."""
    for number in (signal.SIGHUP, *_WITHOUT_EFFECT):
        signal.signal(number, signal.SIG_IGN)


class HostSignals:
    """Signal handlers on the main thread's running loop, from construction until the loop closes."""

    def __init__(self, *, force: Callable[[int], None], reload: Callable[[], None]) -> None:
        """Install the handlers. All of them call on the loop.

        The first SIGTERM or SIGINT starts a drain. The second calls `force(exit_code)`, which should not return. SIGHUP
        calls `reload`.
        """
        self._force = force
        self._reload = reload
        self._first = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in _STOP:
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        for number in _WITHOUT_EFFECT:
            loop.add_signal_handler(number, _ignore, number)

    async def first(self) -> None:
        """Wait for the first signal to stop."""
        await self._first.wait()

    def _stop(self, number: int) -> None:
        if self._first.is_set():
            self._force(128 + number)  # Shells report this code for a process that a signal ended.
        self._first.set()

    def _hang_up(self) -> None:
        if self._first.is_set():
            _log.info("Ignored SIGHUP: the server is shutting down")
        else:
            self._reload()


def _ignore(number: int) -> None:
    _log.info("Ignored %s: it has no effect", signal.Signals(number).name)


_log = logging.getLogger(__name__)
_command = logging.getLogger(COMMAND)

# The first new start follows at once. Each quick end after it doubles the pause.
FIRST_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 30.0
# A process that lived this long was healthy: its end is no continuation of earlier ends.
HEALTHY_S: Final = 60.0
# Time for the application to release its resources after the drain.
_STOP_TIMEOUT_S: Final = 10.0
_OWN_SOCKET: Final = "socket"
# Room for the name of a socket in the directory, also for the name before it is published.
_MAX_NAME_BYTES: Final = 16


def run(module: str, options: HostOptions, environment: Mapping[str, str]) -> int:
    """Serve until SIGTERM or SIGINT, drain, and return the exit code. Blocks; call it on the main thread.

    `module` names the program of the serving process, which calls `serving_process.run`. It finds `environment` in
    `os.environ`, in addition to this process's environment. A second signal kills it at once.
    """
    ignore_until_serving()
    try:
        if options.tls is not None:
            check_usable(options.tls)  # The serving process would report an error seconds later.
            if options.grpc_socket_path is not None:
                _command.warning(
                    "The UNIX socket has no TLS, unlike in TensorFlow Serving. The permissions of its file protect it"
                )
        with contextlib.ExitStack() as stack:
            remove_stale_folders()
            longest = MAX_SOCKET_PATH_BYTES - _MAX_NAME_BYTES if _needs_own_socket(options) else None
            folder = stack.enter_context(runtime_folder(max_path_bytes=longest))
            if _needs_own_socket(options):
                options = dataclasses.replace(options, grpc_socket_path=str(folder.path / _OWN_SOCKET))
            file = stack.enter_context(socket_file(options))
            sockets = stack.enter_context(bound(options, file))
            predecessor = Predecessor.of(options)
            release_library_pages()  # The supervisor's own start used most of them.
            supervisor = _Supervisor(module, options, sockets, file, folder, environment, predecessor)
            return asyncio.run(supervisor.run())
    except HostError as error:
        _command.error("%s", error)
        return 1


def _needs_own_socket(options: HostOptions) -> bool:
    """Return whether health checks need a UNIX socket, as they lack the certificate that the ports require."""
    return options.tls is not None and options.tls.client_ca is not None and options.grpc_socket_path is None


class Respawns:
    """Counts the ends of processes. It never gives up: other models may still serve, and versions may change."""

    def __init__(self) -> None:
        self._quick_ends = 0

    def pause_s(self, lived_s: float) -> float:
        """Return the pause after a process that lived for `lived_s` seconds."""
        self._quick_ends = 1 if lived_s >= HEALTHY_S else self._quick_ends + 1
        if self._quick_ends == 1:
            return 0.0
        return min(FIRST_PAUSE_S * 2.0 ** min(self._quick_ends - 2, 10), MAX_PAUSE_S)


class _Supervisor:
    """Runs one serving process after the other."""

    def __init__(
        self,
        module: str,
        options: HostOptions,
        sockets: Mapping[str, socket.socket],
        file: SocketFile | None,
        folder: RuntimeFolder,
        environment: Mapping[str, str],
        predecessor: Predecessor | None,
    ) -> None:
        self._module = module
        self._options = options
        self._sockets = sockets
        self._file = file
        self._folder = folder
        self._environment = environment
        self._predecessor = predecessor
        self._child: Child | None = None
        self._last_end = ""

    async def run(self) -> int:
        """Serve, drain and stop. Raises HostError if the first process cannot start or serve."""
        signals = HostSignals(force=self._force, reload=self._reload)
        stopping = asyncio.create_task(signals.first())
        respawns = Respawns()
        try:
            while (code := await self._run_child(stopping)) is None:
                assert self._child is not None
                await asyncio.wait({stopping}, timeout=respawns.pause_s(self._child.lived_s))
                if stopping.done():
                    return 0  # No process runs, so there is nothing to drain.
            return code
        finally:
            stopping.cancel()

    async def _run_child(self, stopping: asyncio.Task[None]) -> int | None:
        """Run a process until its end. Return the exit code after a drain, or None after an unexpected end."""
        is_respawn = bool(self._last_end)
        environment = {
            **self._environment,
            RUNTIME_FOLDER_VARIABLE: str(self._folder.path),
            LAST_END_VARIABLE: self._last_end,
        }
        self._child = child = await Child.start(
            self._module, self._options, self._sockets, self._folder.lock, environment, is_respawn=is_respawn
        )
        announcing = asyncio.create_task(self._announce(child))
        try:
            await asyncio.wait({announcing, stopping, child.ended}, return_when=asyncio.FIRST_COMPLETED)
            if announcing.done():
                announcing.result()  # Raises HostError if the UNIX socket cannot be published.
                await asyncio.wait({stopping, child.ended}, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                return await self._stop(child)
            await child.last_words()
            self._explain_end(child, is_respawn=is_respawn)
            return None
        finally:
            announcing.cancel()
            await child.close()
            self._options = dataclasses.replace(self._options, tls=child.tls)

    async def _announce(self, child: Child) -> None:
        await child.open.wait()
        if self._file is not None and not self._last_end:
            self._file.publish()
        addresses = listening(self._options, self._sockets, self._file)
        try:
            Announcement(os.getpid(), **dataclasses.asdict(addresses)).write(self._folder.path)
        except OSError as error:
            _log.warning("Health checks do not find this server: cannot write to %s: %s", self._folder.path, error)
        child.announce(addresses)
        report("READY")
        if self._predecessor is not None:
            self._predecessor.stop()

    async def _stop(self, child: Child) -> int:
        """Wait for the process to drain and to end, and return the exit code."""
        report("STOPPING")
        child.drain()
        if not child.began():
            child.kill()  # No port is open and no model is loading: there is nothing to drain or to stop.
            return 0
        # The process closes the sockets, too, as soon as it takes no more connections.
        for each in self._sockets.values():
            each.close()
        handover_s = CONNECT_S + QUEUE_TIMEOUT_S
        delay_s = max(self._options.drain_delay_s, handover_s)
        await asyncio.wait({child.ended}, timeout=delay_s + self._options.drain_timeout_s + _STOP_TIMEOUT_S)
        if not child.ended.done():
            raise HostError("The application did not end after the drain. The server killed it.")
        code = child.ended.result()
        if code >= 0:
            return code
        _log.error("The serving process ended during the drain (%s); requests in flight are lost", child.how_ended())
        return LOST_REQUESTS

    def _explain_end(self, child: Child, *, is_respawn: bool) -> None:
        """Log why a process ended. Raises HostError if it is the first, and a new start would end the same way."""
        self._last_end = how = child.how_ended()
        if not is_respawn and child.failure is not None:
            raise HostError(child.failure)
        if not is_respawn and not child.began():
            raise HostError(f"The serving process could not start ({how}). The log lines above have the reason.")
        if child.damage is not None:
            _log.error("The serving process has drained and ended (%s). It starts again", child.damage.why)
        elif child.failure is not None:
            _log.error("The application could not start again: %s", child.failure)
        elif child.open.is_set():
            _log.error(
                "The serving process ended by itself (%s); the requests in flight are lost. It starts again", how
            )
        else:
            _log.error("The serving process ended by itself (%s) before it served. It starts again", how)

    def _reload(self) -> None:
        _log.info("SIGHUP: reading the configuration again")
        if self._child is not None:  # Otherwise the next process reads it at its start.
            self._child.reload()

    def _force(self, code: int) -> None:
        if self._child is not None:
            self._child.kill()
        self._folder.remove()
        logging.shutdown()
        os._exit(code)


def report(state: Literal["READY", "STOPPING"]) -> None:
    """Report a state to a service manager such as systemd, by the protocol of sd_notify(3), if one has started us."""
    address = os.environ.get(SERVICE_MANAGER_VARIABLE)
    if not address:
        return
    # A leading @ means Linux's abstract namespace.
    path = f"\0{address[1:]}" if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(f"{state}=1".encode(), path)
    except OSError as error:
        _log.warning("Cannot report %s to the service manager: %s", state, error)
