"""Fleet: one run of an engine process with its front-end processes, as the supervisor sees it.

It has the interface of a Worker. A front-end that ends by itself is started again alone. The fleet ends with its
engine.
"""

import asyncio
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

from tpuserve_server.core.certificate_status import CertificateStatus
from tpuserve_server.core.replacement import Replacement
from tpuserve_server.core.runtime_folder import RuntimeFolder
from tpuserve_server.hosts.application import HostOptions, Listening
from tpuserve_server.hosts.envoy.config import Embedding
from tpuserve_server.hosts.envoy.engine import Engine
from tpuserve_server.hosts.envoy.front_end import FrontEnd, with_ports
from tpuserve_server.hosts.errors import HostError
from tpuserve_server.hosts.socket_file import SocketFile
from tpuserve_server.hosts.tls import TlsOptions

# Time for the front-ends to stop after their drain, and then for the engine to release its resources.
_STOP_TIMEOUT_S: Final = 20.0


class Fleet:
    """One run of an engine and its front-ends. One event loop's thread owns it.

    `ended` has the exit code: negative if a signal ended a process before its requests were answered. `failure` is the
    reason why a process of the fleet cannot start.
    """

    start_hint: Final = "Its log lines above have the reason."
    stop_timeout_s: Final = _STOP_TIMEOUT_S

    def __init__(self, options: HostOptions, engine: Engine, front_ends: list[FrontEnd]) -> None:
        """Start the front-ends of an engine that has just started, at once or when it is ready."""
        self.name = "The engine process"
        self._options = options
        self._engine = engine
        self._front_ends = front_ends
        self._start_failure: str | None = None
        self._draining = asyncio.Event()
        self._how_lost = ""
        self._runs: set[asyncio.Task[int]] = set()
        self._is_opened = False
        # The addresses, once every front-end listens.
        self._listening: asyncio.Future[Listening] = asyncio.get_running_loop().create_future()
        self._opening = asyncio.create_task(self._open())
        self.ended = asyncio.create_task(self._run())

    @classmethod
    async def start(
        cls,
        options: HostOptions,
        embedding: Embedding,
        engine_module: str,
        folder: RuntimeFolder,
        environment: Mapping[str, str],
        file: SocketFile | None,
        *,
        is_respawn: bool,
    ) -> Self:
        """Start the engine, with `environment` in addition to this process's environment."""
        engine = await Engine.start(options, engine_module, folder, environment, is_respawn=is_respawn)
        # One process listens on a UNIX socket: the kernel does not share its path.
        front_ends = [
            FrontEnd(number, embedding, folder, environment, None if number else file, engine.pass_link)
            for number in range(options.frontends)
        ]
        return cls(options, engine, front_ends)

    @property
    def is_live(self) -> bool:
        """Whether a front-end listens, or all have listened before."""
        return self._is_opened or any(each.is_live for each in self._front_ends)

    @property
    def is_loading(self) -> bool:
        """Whether the ports wait for models that load."""
        return self._engine.is_loading

    @property
    def failure(self) -> str | None:
        """The reason why the fleet ends, as the engine or a front-end reported it."""
        return self._engine.failure or self._start_failure

    @property
    def damage(self) -> Replacement | None:
        """The reason why another fleet should take the place of this one."""
        return self._engine.damage

    @property
    def lived_s(self) -> float:
        """Seconds since the start."""
        return self._engine.lived_s

    def began(self) -> bool:
        """Return whether the start came as far as the models."""
        is_ready = self._engine.ready.is_set()
        return self.is_live or self.is_loading or (is_ready and self._engine.ended.done() and self.ended.result() < 0)

    async def listening(self, _options: HostOptions) -> Listening:
        """Wait until every front-end listens, and return the addresses."""
        return await asyncio.shield(self._listening)

    def opened(self, listening: Listening) -> None:
        """Announce the addresses to every process."""
        self._is_opened = True
        self._engine.announce(listening)
        for each in self._front_ends:
            each.announce(listening)

    def show_certificates(self, status: CertificateStatus) -> None:
        """Report the certificates in use to the engine, which shows the state of the server."""
        self._engine.show_certificates(status)

    def drain(self) -> None:
        """Drain and end every front-end, then end the engine."""
        self._draining.set()

    def reload(self) -> None:
        """Order every process to read its configuration again."""
        self._engine.reload()
        for each in self._front_ends:
            each.reload()

    async def replace_certificates(self, tls: TlsOptions) -> bool:
        """Let every front-end use other certificates. Return whether all have read them in time.

        Raises:
            OSError, http.client.HTTPException: Envoy's admin interface does not respond.
        """
        return all(await asyncio.gather(*(each.replace_certificates(tls) for each in self._front_ends)))

    def kill(self) -> None:
        """Kill every process."""
        for each in self._front_ends:
            each.kill()
        self._engine.kill()

    async def last_words(self) -> None:
        """Wait for the end of the engine, and read its remaining messages and log lines."""
        await self._engine.last_words()

    async def close(self) -> None:
        """Kill every process that still runs, and release everything."""
        self.kill()
        await asyncio.wait({self.ended})  # The end of the engine ends it.
        await self._engine.close()

    def how_ended(self) -> str:
        """Describe the end of the engine, or of the front-end that was lost during the drain."""
        return self._how_lost or self._engine.how_ended()

    async def _run(self) -> int:
        """Serve until the engine ends, or drain, and return the exit code."""
        draining = asyncio.create_task(self._draining.wait())
        damaged = asyncio.create_task(self._engine.is_damaged.wait())
        try:
            waiting = {draining, damaged, self._opening, self._engine.ended}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if self._opening.done():
                self._opening.result()
                await asyncio.wait(waiting - {self._opening}, return_when=asyncio.FIRST_COMPLETED)
            if self._engine.ended.done():
                return self._engine.ended.result()
            return await self._drain()
        except (HostError, OSError) as error:
            self._start_failure = str(error)
            self._engine.kill()
            return 1
        finally:
            for task in (draining, damaged, self._opening, *self._runs):
                task.cancel()
            await asyncio.gather(self._opening, *self._runs, return_exceptions=True)

    async def _open(self) -> None:
        """Start the front-ends, and wait until all listen. Raises HostError or OSError if one cannot start."""
        if self._options.opens_when_ready:
            await self._engine.ready.wait()
        # The engine has waited for the models.
        options = dataclasses.replace(self._options, opens_when_ready=False)
        first, *others = self._front_ends
        self._begin([first], options)
        if 0 in (options.grpc_port, options.rest_port):
            options = with_ports(options, await self._opened(first))
        self._begin(others, dataclasses.replace(options, grpc_socket_path=None))
        listening = await self._opened(first)
        for each in others:
            await self._opened(each)
        self._listening.set_result(listening)

    def _begin(self, front_ends: Iterable[FrontEnd], options: HostOptions) -> None:
        self._runs |= {asyncio.create_task(each.run(options)) for each in front_ends}

    async def _opened(self, front_end: FrontEnd) -> Listening:
        """Wait until a front-end listens. Raises HostError or OSError if any cannot start."""
        while not front_end.opened.done():
            waiting: set[asyncio.Future[Any]] = {front_end.opened, *self._runs}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for run in self._runs:
                if run.done():
                    run.result()
        return front_end.opened.result()

    async def _drain(self) -> int:
        """End the front-ends, then the engine, and return the worst exit code."""
        self._engine.drain()
        # A front-end that has not started yet never does.
        self._opening.cancel()
        for each in self._front_ends:
            each.drain()
        codes = await asyncio.gather(*self._runs)
        self._engine.stop()
        codes.append(await self._engine.ended)
        for each in self._front_ends:
            if each.how_lost:
                self.name, self._how_lost = f"Front-end {each.number}", each.how_lost
        return min(codes) if min(codes) < 0 else max(codes)
