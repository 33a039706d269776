"""Channel between the supervisor and the serving process: JSON lines over a socket pair.

Messages to the serving process: `start` (with the certificates), `announce` (the addresses are open), `reload` and
`drain` (then exit). Messages to the supervisor: `loading` (the application has started), `open`, `failed` (with the
reason), `certificates` (that it uses now) and `replace` (the process drains and ends, and another should take its
place). The end of the stream means that the other side is gone. An environment variable carries the initial settings,
which have no secrets. The exit code is the last message.
"""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Self

from tpuserve_server.hosts.application import HostOptions

# Exit code after a drain that ended before every accepted request had its response.
LOST_REQUESTS = 3
# Exit code after the loss of the supervisor, which is the only process that reads it.
ORPHANED = 1

VARIABLE = "TPUSERVE_SERVING_PROCESS"
# Only the supervisor has it: the HTTP server would also report its own states, such as the end of a generation.
SERVICE_MANAGER_VARIABLE = "NOTIFY_SOCKET"
# Environment variables of the application: a directory that survives the end of its process, and how the process before
# it ended, such as `signal SIGSEGV`. Empty for the first.
RUNTIME_FOLDER_VARIABLE = "TPUSERVE_RUNTIME_FOLDER"
LAST_END_VARIABLE = "TPUSERVE_LAST_END"


@dataclass(frozen=True, slots=True)
class ProcessSetup:
    """Settings that the supervisor passes to the serving process at its start."""

    # Without TLS: other processes may read the environment, so it must not contain a key.
    options: HostOptions
    # Descriptors of the bound sockets, by their field of `Listening`.
    sockets: Mapping[str, int]
    # Descriptor of the process's end of the channel.
    channel: int
    # Descriptor of the lock on the server's directory. The process holds it until its end.
    lock: int
    # Whether an earlier process has served. This one then waits for a version, even if all have failed.
    is_respawn: bool = False

    def to_json(self) -> str:
        """Encode the setup for the environment variable."""
        return json.dumps(asdict(self))

    @classmethod
    def from_environment(cls) -> Self:
        """Read the variable, and remove it from the environment."""
        fields = json.loads(os.environ.pop(VARIABLE))
        return cls(**{**fields, "options": HostOptions(**fields["options"])})


class Channel:
    """One end of the channel. Messages are dictionaries with a `type`. One event loop's thread owns it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Self:
        """Create a channel that owns one end of a socket pair."""
        end.setblocking(False)
        return cls(*await asyncio.open_connection(sock=end))

    def send(self, kind: str, **fields: object) -> None:
        """Send a message without waiting: messages are short and few. Drop it if the other side is gone."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps({"type": kind, **fields}).encode() + b"\n")

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        """Yield every message from the other side, until it is gone."""
        while line := await self._line():
            yield json.loads(line)

    async def close(self) -> None:
        """Send pending messages, then close this end."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    async def _line(self) -> bytes:
        try:
            return await self._reader.readline()
        except ConnectionError:
            return b""
