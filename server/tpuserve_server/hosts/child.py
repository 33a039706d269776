"""Child: one run of the serving process, from its start to its end, as the supervisor sees it."""

import asyncio
import contextlib
import dataclasses
import logging
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Self

from tpuserve_server.core.terms.server_state import Replacement
from tpuserve_server.hosts.application import HostOptions, Listening, TlsOptions
from tpuserve_server.hosts.channel import SERVICE_MANAGER_VARIABLE, VARIABLE, Channel, ProcessSetup
from tpuserve_server.observe.logs.configuration import DESCRIPTOR_VARIABLE

# StderrRelay: reads the stderr of the serving process and logs its lines in the supervisor.
#
# Native libraries and crashes write lines in their own formats. They would also stop if the reader of the server's
# stderr were stuck. The application writes its log directly.

_CHUNK_BYTES = 64 * 1024
# Longer lines are split.
_MOST_OF_LINE_BYTES = 16 * 1024
# Wait for the end of the pipe after the end of the process. A process that the application started may keep it open.
_FINISH_TIMEOUT_S = 1.0
# The form of Abseil's log lines, of gRPC, TensorFlow and XLA: level, month and day, time.
_ABSEIL: Final = re.compile(r"([IWEF])\d{4} \d\d:\d\d:\d\d")
_ABSEIL_LEVELS: Final = {"I": logging.INFO, "W": logging.WARNING, "E": logging.ERROR, "F": logging.CRITICAL}
_NATIVE: Final = "stderr"
# h2corn reports some clients that leave as errors. The application sends them no response.
_CLIENTS_LEFT: Final = re.compile(
    "request failed: (connection writer was closed|stream channel was closed"
    "|ASGI app returned before starting the response)"
)


@dataclass(frozen=True, slots=True)
class RelayedStderr:
    """Descriptors: the end of the pipe that the supervisor reads, the process's end, and the stderr of the server."""

    ours: int
    theirs: int
    log: int


@contextlib.contextmanager
def relayed_stderr() -> Iterator[RelayedStderr]:
    """Open the descriptors for a new process. At the exit, only `ours` remains open, for `StderrRelay.over`."""
    ours, theirs = os.pipe()
    log = _copy_of_stderr()
    try:
        yield RelayedStderr(ours, theirs, log)
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
        os.close(log)


class StderrRelay:
    """Logs the lines of one process. The event loop's thread owns it."""

    def __init__(self, reader: asyncio.StreamReader, transport: asyncio.ReadTransport) -> None:
        self._reader = reader
        self._transport = transport
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def over(cls, descriptor: int) -> Self:
        """Read a pipe, and close it in the end."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
        )
        return cls(reader, transport)

    async def finish(self) -> None:
        """Log the remaining lines after the end of the process."""
        await asyncio.wait({self._reading}, timeout=_FINISH_TIMEOUT_S)
        self._reading.cancel()
        self._transport.close()

    async def _read(self) -> None:
        rest = b""
        while chunk := await self._reader.read(_CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _MOST_OF_LINE_BYTES:
                lines.append(rest)
                rest = b""
            for line in lines:
                _log(line)
        _log(rest)


def _log(line: bytes) -> None:
    for start in range(0, len(line), _MOST_OF_LINE_BYTES):
        log_line(line[start : start + _MOST_OF_LINE_BYTES].decode(errors="replace").rstrip("\r"))


def log_line(line: str) -> None:
    """Log a line. A line of unknown origin is a warning, which no level suppresses: it may explain a crash.

    The line is the message itself, not its argument, so that only equal lines count as repeats.
    """
    if _CLIENTS_LEFT.search(line):
        logging.getLogger(_NATIVE).debug(line)
    elif match := _ABSEIL.match(line):
        logging.getLogger(_NATIVE).log(_ABSEIL_LEVELS[match[1]], line)
    elif line.strip():
        native = logging.getLogger(_NATIVE)
        native.handle(native.makeRecord(_NATIVE, logging.WARNING, __file__, 0, line, (), None))


def _copy_of_stderr() -> int:
    try:
        return os.dup(2)
    except OSError:  # The process has none.
        return os.open(os.devnull, os.O_WRONLY)


# Signals that systemd, an init or a user may send to every process of the server. Only the supervisor handles them, and
# orders the drain over the channel.
_SUPERVISORS_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


class Child:
    """One run of the process.

    `open` and `is_loading` show how far its start came. `failure` is the reported reason why it ends. `damage` is the
    reported reason why another process should take its place. `tls` are the certificates that it used last.
    """

    def __init__(
        self, process: asyncio.subprocess.Process, channel: Channel, relay: StderrRelay, tls: TlsOptions | None
    ) -> None:
        """Follow a process that has just started."""
        self.open = asyncio.Event()
        self.is_loading = False
        self.failure: str | None = None
        self.damage: Replacement | None = None
        self.tls = tls
        self._process, self._channel, self._relay = process, channel, relay
        self.ended = asyncio.create_task(process.wait())
        self._started_s = time.monotonic()
        self._hearing = asyncio.create_task(self._hear())

    @classmethod
    async def start(
        cls,
        module: str,
        options: HostOptions,
        sockets: Mapping[str, socket.socket],
        lock: int,
        environment: Mapping[str, str],
        *,
        is_respawn: bool,
    ) -> Self:
        """Start `module` as a program, with `environment` in addition to this process's environment.

        It inherits `sockets`, and the descriptor `lock` of the lock on the server's directory.
        """
        ours, theirs = socket.socketpair()
        # Signals are blocked before the process exists, so that no moment remains in which one ends it.
        with theirs, _blocked(_SUPERVISORS_SIGNALS), relayed_stderr() as stderr:
            setup = ProcessSetup(
                dataclasses.replace(options, tls=None),
                {name: each.fileno() for name, each in sockets.items()},
                theirs.fileno(),
                lock,
                is_respawn=is_respawn,
            )
            process = await asyncio.create_subprocess_exec(
                # Without -P, a file in the working directory could shadow a module.
                *(sys.executable, "-P", "-m", module),
                stdin=asyncio.subprocess.DEVNULL,
                stderr=stderr.theirs,
                pass_fds=[*setup.sockets.values(), setup.channel, lock, stderr.log],
                env={
                    **{name: value for name, value in os.environ.items() if name != SERVICE_MANAGER_VARIABLE},
                    **environment,
                    "PYTHONPATH": _module_path(),
                    VARIABLE: setup.to_json(),
                    DESCRIPTOR_VARIABLE: str(stderr.log),
                },
                # Signals of a terminal reach every process of its group. Only the supervisor must handle them.
                start_new_session=True,
            )
        channel = await Channel.over(ours)
        channel.send("start", tls=None if options.tls is None else dataclasses.asdict(options.tls))
        return cls(process, channel, await StderrRelay.over(stderr.ours), options.tls)

    @property
    def lived_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started_s

    def began(self) -> bool:
        """Return whether the start came as far as the models. A model may end the process before the ports open."""
        return self.open.is_set() or self.is_loading

    def announce(self, listening: Listening) -> None:
        """Report the addresses of the server to the application."""
        self._channel.send("announce", listening=dataclasses.asdict(listening))

    def drain(self) -> None:
        """Order the process to drain and to end."""
        self._channel.send("drain")

    def reload(self) -> None:
        """Order the process to read its configuration and its certificates again."""
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
                case "open":
                    self.is_loading = False
                    self.open.set()
                case "failed":
                    self.failure = message["why"]
                case "certificates":
                    self.tls = TlsOptions(**message["tls"])
                case "replace":
                    self.damage = Replacement(message["damage"], message["why"])


def _module_path() -> str:
    """Return this process's module path for another Python. An empty entry would mean its working directory."""
    return os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)


@contextlib.contextmanager
def _blocked(signals: Iterable[signal.Signals]) -> Iterator[None]:
    """Block signals of this thread and of the processes that it starts meanwhile. They never unblock them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
