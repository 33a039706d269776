"""StderrRelay: reads the stderr of Envoy's process and logs its lines in the supervisor.

Envoy, its libraries and crashes write lines in their own formats. Envoy would also stop if the reader of the server's
stderr were stuck. The application in Envoy writes its log directly.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from tpuserve_server.hosts.envoy.native_line import log_line

_CHUNK_BYTES = 64 * 1024
# Longer lines are split.
_MOST_OF_LINE_BYTES = 16 * 1024
# Wait for the end of the pipe after the end of Envoy. A process that the application started may keep it open.
_FINISH_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class RelayedStderr:
    """Descriptors: the end of the pipe that the supervisor reads, Envoy's end, and the stderr of the server."""

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


def _copy_of_stderr() -> int:
    try:
        return os.dup(2)
    except OSError:  # The process has none.
        return os.open(os.devnull, os.O_WRONLY)
