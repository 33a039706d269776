"""StderrRelay: reads the stderr of the serving process and logs its lines in the supervisor.

Native libraries and crashes write lines in their own formats. They would also stop if the reader of the server's stderr
were stuck. The application writes its log directly.
"""

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

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
    "request failed: (connection writer was closed|ASGI app returned before starting the response)"
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
