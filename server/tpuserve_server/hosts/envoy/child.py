"""Child: a process of the server, from its start to its end, as the supervisor sees it."""

import asyncio
import contextlib
import dataclasses
import os
import signal
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tpuserve_server.core.certificate_status import CertificateStatus
from tpuserve_server.core.replacement import Replacement
from tpuserve_server.hosts.application import HostOptions, Listening
from tpuserve_server.hosts.envoy.channel import VARIABLE, Channel, ChildSetup
from tpuserve_server.hosts.envoy.process import EMBEDDING_VARIABLES
from tpuserve_server.hosts.envoy.stderr_relay import StderrRelay, relayed_stderr
from tpuserve_server.logs.configuration import DESCRIPTOR_VARIABLE

# Signals that systemd, an init or a user may send to every process of the server. In Envoy, they would end all
# connections. Only the supervisor handles them, and orders the drain over the channel.
_SUPERVISORS_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


class Spawned(NamedTuple):
    """A process that has just started, with the supervisor's ends of its channel and of its stderr."""

    process: asyncio.subprocess.Process
    channel: Channel
    relay: StderrRelay


def child_setup(options: HostOptions, lock: int, admin_socket: Path, *, is_respawn: bool) -> ChildSetup:
    """Return the setup of a process that holds the descriptor `lock`. `spawn` completes it."""
    return ChildSetup(
        # Other processes may read the environment, so it must not contain a key.
        options=dataclasses.replace(options, tls=None, envoy_spans=None),
        admin_socket=str(admin_socket),
        channel=-1,
        lock=lock,
        directory=os.getcwd(),
        environment={name: os.environ.get(name) for name in EMBEDDING_VARIABLES},
        is_respawn=is_respawn,
        has_client_ca=options.tls is not None and options.tls.client_ca is not None,
    )


async def spawn(
    command: Sequence[str | Path],
    setup: ChildSetup,
    environment: Mapping[str, str],
    *,
    directory: Path,
) -> Spawned:
    """Start a process with this whole environment."""
    ours, theirs = socket.socketpair()
    # Signals are blocked before the process exists, so that no moment remains in which one ends it.
    with theirs, _blocked(_SUPERVISORS_SIGNALS), relayed_stderr() as stderr:
        complete = dataclasses.replace(setup, channel=theirs.fileno())
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stderr=stderr.theirs,
            pass_fds=[complete.channel, complete.lock, stderr.log],
            cwd=directory,
            env={**environment, VARIABLE: complete.to_json(), DESCRIPTOR_VARIABLE: str(stderr.log)},
            # Signals of a terminal reach every process of its group. Only the supervisor must handle them.
            start_new_session=True,
        )
    return Spawned(process, await Channel.over(ours), await StderrRelay.over(stderr.ours))


class Child:
    """One run of a process.

    `ready` and `is_loading` show how far its start came. `failure` is the reported reason why it ends. `damage` is the
    reported reason why another process should take its place, and `is_damaged` waits for it.
    """

    def __init__(self, spawned: Spawned) -> None:
        """Follow a process that has just started."""
        self.ready = asyncio.Event()
        self.is_loading = False
        self.failure: str | None = None
        self.damage: Replacement | None = None
        self.is_damaged = asyncio.Event()
        # Address of the REST server that the application runs itself.
        self.rest_address: str | None = None
        self._process, self._channel, self._relay = spawned
        self.ended = asyncio.create_task(self._process.wait())
        self._started_s = time.monotonic()
        self._hearing = asyncio.create_task(self._hear())

    @property
    def lived_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started_s

    def announce(self, listening: Listening) -> None:
        """Report the addresses of the server to the application."""
        self._channel.send("announce", listening=dataclasses.asdict(listening))

    def show_certificates(self, status: CertificateStatus) -> None:
        """Report the certificates in use, and the outcome of the last reload."""
        self._channel.send("certificates", status=dataclasses.asdict(status))

    def drain(self) -> None:
        """Order the application to drain. In Envoy, it then ends the process."""
        self._channel.send("drain")

    def reload(self) -> None:
        """Order the application to read its configuration again."""
        self._channel.send("reload")

    def kill(self) -> None:
        """Kill the process and all processes that it started, if it still runs."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def last_words(self) -> None:
        """Wait for the end, and read the remaining messages and log lines."""
        await asyncio.wait({self.ended, self._hearing})
        await self._relay.finish()

    async def close(self) -> None:
        """Kill the process if it still runs, and release everything."""
        self.kill()
        await self._channel.close()
        await self.last_words()

    def how_ended(self) -> str:
        """Describe the end, such as `signal SIGSEGV` or `hung run`, or return "" while the process runs."""
        code = self._process.returncode
        if code is None:
            return ""
        if self.damage is not None:
            return self.damage.damage
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    async def _hear(self) -> None:
        async for message in self._channel.messages():
            match message["type"]:
                case "loading":
                    self.is_loading = True
                case "ready":
                    self.is_loading = False
                    self.rest_address = message.get("rest")
                    self.ready.set()
                case "failed":
                    self.failure = message["why"]
                case "replace":
                    self.damage = Replacement(message["damage"], message["why"])
                    self.is_damaged.set()


@contextlib.contextmanager
def _blocked(signals: Iterable[signal.Signals]) -> Iterator[None]:
    """Block signals of this thread and of the processes that it starts meanwhile. They never unblock them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
