"""Supervisor of the Envoy host: starts Envoy with the application inside, turns signals into a drain, and cleans up.

The process is light: it imports neither tensorflow nor the application, and handles no requests.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from tpuserve_server.hosts.addresses import check_free
from tpuserve_server.hosts.application import HostOptions
from tpuserve_server.hosts.envoy.admin import EnvoyAdmin, until
from tpuserve_server.hosts.envoy.channel import VARIABLE, Channel, ChildSetup
from tpuserve_server.hosts.envoy.config import Embedding, bootstrap
from tpuserve_server.hosts.envoy.process import EMBEDDING_VARIABLES, child_environment, embedding_library, envoy_binary
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.grpc.arguments import unknown_to_envoy
from tpuserve_server.hosts.socket_file import MAX_SOCKET_PATH_BYTES, SocketFile, socket_file
from tpuserve_server.hosts.stop_signals import StopSignals
from tpuserve_server.hosts.tls import server_context

# One thread parses HTTP for all connections. The application's event loop is the bottleneck long before this thread.
# More threads would only compete with that loop and the model for the same cores.
_WORKER_THREADS = 1
# Time for the application to release its resources after the drain.
_STOP_TIMEOUT_S = 10.0
_CONFIG = "envoy.json"


def run(asgi_entry: str, options: HostOptions, environment: Mapping[str, str]) -> int:
    """Serve until SIGTERM or SIGINT, drain, and return the exit code. Blocks; call it on the main thread.

    `asgi_entry` names an `EnvoyEntry` as `module:attribute`. Its factory finds `environment` in `os.environ`, in
    addition to this process's environment. A second signal kills Envoy at once.
    """
    for name in unknown_to_envoy(options.grpc_arguments):
        click.echo(f"tpuserve: {name} has no effect in Envoy. Use --host_backend=python for it.", err=True)
    try:
        check_free(options)
        if options.tls is not None:
            server_context(options.tls)  # Checks the certificates: Envoy does not report their errors in one line.
        embedding = Embedding(embedding_library(), asgi_entry)
        with _runtime_folder() as folder, socket_file(options) as file:
            return asyncio.run(_Supervisor(options, embedding, folder, file).run(environment))
    except HostError as error:
        click.echo(f"tpuserve: {error}", err=True)
        return 1


@contextlib.contextmanager
def _runtime_folder() -> Iterator[Path]:
    """Create a directory that only this user can enter, with a path short enough for a UNIX socket in it."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tpuserve-")))
        if len(os.fsencode(folder / "admin.sock")) > MAX_SOCKET_PATH_BYTES:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tpuserve-", dir="/tmp")))
        yield folder


class _Supervisor:
    """One run of Envoy."""

    def __init__(self, options: HostOptions, embedding: Embedding, folder: Path, file: SocketFile | None) -> None:
        # Envoy binds a temporary name. The supervisor renames the socket once Envoy listens.
        self._options = dataclasses.replace(options, grpc_socket_path=file.bound if file is not None else None)
        self._file = file
        self._embedding = embedding
        self._folder = folder
        self._admin = EnvoyAdmin(folder / "admin.sock")
        self._ready = asyncio.Event()
        self._live = False
        self._loading = False
        self._failure: str | None = None
        self._process: asyncio.subprocess.Process | None = None

    async def run(self, environment: Mapping[str, str]) -> int:
        """Start Envoy, serve, drain and stop. Raises HostError if Envoy cannot start or exits unexpectedly."""
        signals = StopSignals(self._force)
        parent_socket, child_socket = socket.socketpair()
        with child_socket:
            self._process = process = await self._start(environment, child_socket.fileno())
        channel = await Channel.over(parent_socket)
        hearing = asyncio.create_task(self._hear(channel))
        serving = asyncio.create_task(self._serve(signals, channel))
        ended = asyncio.create_task(process.wait())
        try:
            await asyncio.wait({serving, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                await hearing  # Read its remaining messages, up to the end of the stream.
                raise self._died(ended.result())
            serving.result()
            return await self._end(ended)
        finally:
            self._kill()
            serving.cancel()
            await channel.close()
            await asyncio.wait({ended, hearing})

    async def _end(self, ended: asyncio.Task[int]) -> int:
        """Wait for the drained application, which ends Envoy, too, and return the exit code."""
        if not (self._live or self._loading):
            self._kill()  # No port is open and no model is loading: there is nothing to drain or to stop.
            return 0
        await asyncio.wait({ended}, timeout=self._patience_s())
        if not ended.done():
            raise HostError("The application did not end after the drain. The server killed it.")
        return ended.result()

    async def _start(self, environment: Mapping[str, str], channel: int) -> asyncio.subprocess.Process:
        config = self._folder / _CONFIG
        config.touch(mode=0o600)
        config.write_text(json.dumps(bootstrap(self._options, self._embedding, self._admin.path)))
        setup = ChildSetup(
            # Other processes may read the environment, so it must not contain a key.
            options=dataclasses.replace(self._options, tls=None),
            admin_socket=str(self._admin.path),
            channel=channel,
            directory=os.getcwd(),
            environment={name: os.environ.get(name) for name in EMBEDDING_VARIABLES},
        )
        return await asyncio.create_subprocess_exec(
            envoy_binary(),
            *("--config-path", config, "--disable-hot-restart", "--concurrency", str(_WORKER_THREADS)),
            *("--log-level", "warning"),
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=[channel],
            cwd=self._folder,
            env={**child_environment(environment), VARIABLE: setup.to_json()},
            # Ctrl-C in a terminal reaches every process of its group. Only the supervisor must handle it.
            start_new_session=True,
        )

    async def _hear(self, channel: Channel) -> None:
        async for message in channel.messages():
            match message["type"]:
                case "loading":
                    self._loading = True
                case "ready":
                    self._loading = False
                    self._ready.set()
                case "failed":
                    self._failure = message["why"]

    async def _serve(self, signals: StopSignals, channel: Channel) -> None:
        """Announce the addresses and wait for a signal, then order the application to drain and to end with Envoy."""
        announcing = asyncio.create_task(self._announce(channel))
        stopping = asyncio.create_task(signals.first())
        try:
            await asyncio.wait({announcing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if announcing.done():
                announcing.result()
                await stopping
        finally:
            announcing.cancel()
            stopping.cancel()
        channel.send("drain")

    async def _announce(self, channel: Channel) -> None:
        await self._ready.wait()
        await until(self._admin.is_live)
        self._live = True
        (self._folder / _CONFIG).unlink()  # Envoy has read the file, which may contain a key.
        listening = await asyncio.to_thread(self._admin.listening, self._options)
        if self._file is not None:
            self._file.publish()
            listening = dataclasses.replace(listening, grpc_socket=self._file.address)
        channel.send("announce", listening=dataclasses.asdict(listening))

    def _patience_s(self) -> float:
        return self._options.drain_delay_s + self._options.drain_timeout_s + _STOP_TIMEOUT_S

    def _died(self, code: int) -> HostError:
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if self._failure is not None:
            return HostError(self._failure)
        if not self._live:
            return HostError(
                f"Envoy could not start ({how}). Envoy's log lines above have the reason. Use --host_backend=python to "
                "run without Envoy."
            )
        return HostError(f"Envoy ended by itself ({how}); the requests in flight are lost.")

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _force(self, code: int) -> None:
        self._kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        sys.stderr.flush()
        os._exit(code)
