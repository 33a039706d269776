"""Channel between the supervisor and the application inside Envoy: JSON lines over a socket pair.

Messages to the application: `announce` (with the addresses), `certificates` (with their status), `reload` and `drain`
(then exit). Messages to the supervisor: `loading` (the addresses open once the application is ready), `ready`, `failed`
(with the reason) and `replace` (the process drains and ends, and another should take its place). The end of the stream
means that the other side is gone. An environment variable carries the initial settings.
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
# Environment variables of the application: a directory that survives the end of its process, and how the process before
# it ended, such as `signal SIGSEGV`. Empty for the first.
RUNTIME_FOLDER_VARIABLE = "TPUSERVE_RUNTIME_FOLDER"
LAST_END_VARIABLE = "TPUSERVE_LAST_END"


@dataclass(frozen=True, slots=True)
class ChildSetup:
    """Settings that the supervisor passes to the application at its start."""

    options: HostOptions
    # Path of Envoy's admin interface, for the drain.
    admin_socket: str
    # File descriptor of the application's end of the channel.
    channel: int
    # File descriptor of the lock on the server's directory. The process holds it until its end.
    lock: int
    # The supervisor's working directory. Envoy itself starts in a directory without files that could shadow a module.
    directory: str
    # Variables of Envoy that processes of the application must not inherit, with their former values.
    environment: Mapping[str, str | None]
    # Whether an earlier process has served. This one then waits for a version, even if all have failed.
    is_respawn: bool = False
    # Whether Envoy verifies the certificates of clients. The options omit TLS.
    has_client_ca: bool = False

    def to_json(self) -> str:
        """Encode the setup for the environment variable."""
        return json.dumps(asdict(self))

    @classmethod
    def from_environment(cls) -> Self:
        """Read the variable, and undo the changes to this process that only Envoy's start needed."""
        fields = json.loads(os.environ.pop(VARIABLE))
        setup = cls(**{**fields, "options": HostOptions(**fields["options"])})
        os.chdir(setup.directory)
        # The embedding added ".", which after `chdir` would mean a directory of the user.
        sys.path[:] = [entry for entry in sys.path if entry != "."]
        for name, value in setup.environment.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        return setup


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
