"""Worker: one run of Envoy with the application inside, from its start to its end, as the supervisor sees it."""

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Self

from tpuserve_server.core.certificate_status import CertificateStatus
from tpuserve_server.core.replacement import Replacement
from tpuserve_server.hosts.application import HostOptions, Listening
from tpuserve_server.hosts.envoy.admin import EnvoyAdmin, until
from tpuserve_server.hosts.envoy.channel import VARIABLE, Channel, ChildSetup
from tpuserve_server.hosts.envoy.config import Embedding, bootstrap
from tpuserve_server.hosts.envoy.native_line import ENVOY_LOG_FORMAT
from tpuserve_server.hosts.envoy.process import EMBEDDING_VARIABLES, child_environment, envoy_binary
from tpuserve_server.hosts.envoy.secret_files import SecretFiles
from tpuserve_server.hosts.envoy.stderr_relay import StderrRelay, relayed_stderr
from tpuserve_server.hosts.runtime_folder import RuntimeFolder
from tpuserve_server.hosts.tls import TlsOptions
from tpuserve_server.logs.configuration import DESCRIPTOR_VARIABLE

# One thread parses HTTP for all connections. The application's event loop is the bottleneck long before this thread.
# More threads would only compete with that loop and the model for the same cores.
_WORKER_THREADS = 1
_CONFIG = "envoy.json"
# Envoy reads a changed file within milliseconds.
_READ_TIMEOUT_S = 10.0
# Signals that systemd, an init or a user may send to every process of the server. In Envoy, they would end all
# connections. Only the supervisor handles them, and orders the drain over the channel.
_SUPERVISORS_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


class Worker:
    """One run of Envoy.

    `is_live` and `is_loading` tell how far its start came. `failure` is the reported reason why it ends, and `damage`
    the reported reason why another should take its place.
    """

    def __init__(
        self, process: asyncio.subprocess.Process, channel: Channel, folder: RuntimeFolder, relay: StderrRelay
    ) -> None:
        """Follow a process that has just started."""
        self.admin = admin_of(folder)
        self.ready = asyncio.Event()
        self.is_live = False
        self.is_loading = False
        self.failure: str | None = None
        self.damage: Replacement | None = None
        self.ended = asyncio.create_task(process.wait())
        self._process = process
        self._channel = channel
        self._folder = folder
        self._relay = relay
        self._started_s = time.monotonic()
        self._hearing = asyncio.create_task(self._hear())

    @classmethod
    async def start(
        cls,
        options: HostOptions,
        embedding: Embedding,
        folder: RuntimeFolder,
        environment: Mapping[str, str],
        *,
        is_respawn: bool,
    ) -> Self:
        """Start Envoy, with `environment` in addition to this process's environment."""
        ours, theirs = socket.socketpair()
        with theirs:
            setup = ChildSetup(
                # Other processes may read the environment, so it must not contain a key.
                options=dataclasses.replace(options, tls=None, envoy_spans=None),
                admin_socket=str(admin_of(folder).path),
                channel=theirs.fileno(),
                lock=folder.lock,
                directory=os.getcwd(),
                environment={name: os.environ.get(name) for name in EMBEDDING_VARIABLES},
                is_respawn=is_respawn,
                has_client_ca=options.tls is not None and options.tls.client_ca is not None,
            )
            config = folder.path / _CONFIG
            config.touch(mode=0o600)
            config.write_text(json.dumps(bootstrap(options, embedding, admin_of(folder).path)))
            if options.tls is not None:
                SecretFiles(folder.path).write(options.tls)
            # Blocked before Envoy exists, so that no moment remains in which a signal ends it.
            with _blocked(_SUPERVISORS_SIGNALS), relayed_stderr() as stderr:
                process = await asyncio.create_subprocess_exec(
                    envoy_binary(),
                    *("--config-path", config, "--disable-hot-restart", "--concurrency", str(_WORKER_THREADS)),
                    *("--log-level", "warning", "--log-format", ENVOY_LOG_FORMAT),
                    stdin=asyncio.subprocess.DEVNULL,
                    stderr=stderr.theirs,
                    pass_fds=[setup.channel, setup.lock, stderr.log],
                    cwd=folder.path,
                    env={
                        **child_environment(environment),
                        VARIABLE: setup.to_json(),
                        DESCRIPTOR_VARIABLE: str(stderr.log),
                    },
                    # Signals of a terminal reach every process of its group. Only the supervisor must handle them.
                    start_new_session=True,
                )
        return cls(process, await Channel.over(ours), folder, await StderrRelay.over(stderr.ours))

    @property
    def lived_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started_s

    def began(self) -> bool:
        """Return whether the start came as far as the models, so that Envoy and its configuration work.

        A model may end the process before the ports open.
        """
        return self.is_live or self.is_loading or (self.ready.is_set() and self.ended.result() < 0)

    def opened(self, listening: Listening) -> None:
        """Announce the addresses, and remove the files that Envoy has read. One contains the key."""
        self.is_live = True
        (self._folder.path / _CONFIG).unlink(missing_ok=True)
        SecretFiles(self._folder.path).remove()
        self._channel.send("announce", listening=dataclasses.asdict(listening))

    def show_certificates(self, status: CertificateStatus) -> None:
        """Report the certificates in use, and the outcome of the last reload."""
        self._channel.send("certificates", status=dataclasses.asdict(status))

    def drain(self) -> None:
        """Order the application to drain and to end with Envoy."""
        self._channel.send("drain")

    def reload(self) -> None:
        """Order the application to read its configuration again."""
        self._channel.send("reload")

    async def replace_certificates(self, tls: TlsOptions) -> bool:
        """Let Envoy use other certificates, which the caller has checked. Return whether it has read them in time.

        Raises:
            OSError, http.client.HTTPException: Envoy's admin interface does not respond.
        """
        files, names = SecretFiles(self._folder.path), SecretFiles.names(tls)
        before = {name: await asyncio.to_thread(self.admin.secret_updates, name) for name in names}
        try:
            files.write(tls)
            async with asyncio.timeout(_READ_TIMEOUT_S):
                await until(lambda: all(self.admin.secret_updates(name) > count for name, count in before.items()))
        except TimeoutError:
            return False
        finally:
            files.remove()
        return True

    def kill(self) -> None:
        """Kill Envoy and all processes of the application, if Envoy still runs."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def last_words(self) -> None:
        """Wait for the end, and read the remaining messages and log lines."""
        await asyncio.wait({self.ended, self._hearing})
        await self._relay.finish()

    async def close(self) -> None:
        """Kill Envoy if it still runs, and release everything."""
        self.kill()
        await self._channel.close()
        await self.last_words()

    def how_ended(self) -> str:
        """Describe the end, such as `signal SIGSEGV` or `hung run`, or return "" while Envoy runs."""
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
                    self.ready.set()
                case "failed":
                    self.failure = message["why"]
                case "replace":
                    self.damage = Replacement(message["damage"], message["why"])


def admin_of(folder: RuntimeFolder) -> EnvoyAdmin:
    """Return Envoy's admin interface in a server's directory."""
    return EnvoyAdmin(folder.path / "admin.sock")


@contextlib.contextmanager
def _blocked(signals: Iterable[signal.Signals]) -> Iterator[None]:
    """Block signals of this thread and of the processes that it starts meanwhile. They never unblock them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
