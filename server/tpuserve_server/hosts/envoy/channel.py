"""How the supervisor and the application inside Envoy talk: JSON lines over a socket pair, one environment variable.

To the application: `announce` (with the addresses), `drain` (and then end). To the supervisor: `loading` (addresses
open once the application is ready), `ready`, `failed` (with the reason). The end of the stream says that the other side
is gone.
"""

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Self

from tpuserve_server.hosts.application import HostOptions

VARIABLE = "TPUSERVE_ENVOY_CHILD"


@dataclass(frozen=True, slots=True)
class ChildSetup:
    """What the application needs from its supervisor before anything else."""

    options: HostOptions
    # Envoy's admin interface, for the drain.
    admin_socket: str
    # File descriptor of the application's end of the channel.
    channel: int
    # The supervisor's working directory: Envoy itself starts in a folder where nothing can shadow a module.
    directory: str
    # What must not leak from Envoy's environment to processes that the application starts, and the former values.
    environment: Mapping[str, str | None]

    def to_json(self) -> str:
        """For the environment variable."""
        return json.dumps(asdict(self))

    @classmethod
    def from_environment(cls) -> Self:
        """Read the variable, and undo in this process what only Envoy's start needed."""
        fields = json.loads(os.environ.pop(VARIABLE))
        setup = cls(**{**fields, "options": HostOptions(**fields["options"])})
        os.chdir(setup.directory)
        # The embedding put it there; from here on it would mean a folder of the user's.
        sys.path[:] = [entry for entry in sys.path if entry != "."]
        for name, value in setup.environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        return setup


class Channel:
    """One end. Messages are dictionaries with a `type`. One event loop's thread owns it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Self:
        """Take over one end of a socket pair."""
        end.setblocking(False)
        return cls(*await asyncio.open_connection(sock=end))

    def tell(self, kind: str, **fields: object) -> None:
        """Send, without waiting: messages are short and few. Into nothing when the other side is gone."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps({"type": kind, **fields}).encode() + b"\n")

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        """Every message from the other side, until it is gone."""
        while line := await self._line():
            yield json.loads(line)

    async def close(self) -> None:
        """Send what was told, then let the other side see the end."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    async def _line(self) -> bytes:
        try:
            return await self._reader.readline()
        except ConnectionError:
            return b""
