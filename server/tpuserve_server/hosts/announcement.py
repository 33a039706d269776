"""Announcement: the addresses of a running server, in its private directory, for programs of the same user.

Light imports only: a health check starts every few seconds.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from tpuserve_server.core.system.runtime_folder import folders_in_use

_FILE: Final = "announcement.json"
# Addresses for clients on this machine, by the wildcard address of the server.
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


@dataclass(frozen=True, slots=True)
class Announcement:
    """A server's process id, and its addresses as in `Listening`. None for an address that is off."""

    pid: int
    grpc: str | None
    rest: str | None
    grpc_socket: str | None
    tls: bool

    def write(self, folder: Path) -> None:
        """Write the announcement into the directory of the server, in one step. Raises OSError."""
        new = folder / f"{_FILE}.new"
        new.write_text(json.dumps({name: getattr(self, name) for name in self.__slots__}))
        os.replace(new, folder / _FILE)

    @classmethod
    def all(cls) -> Iterator[Self]:
        """Yield the announcements of this user's servers that have opened their addresses."""
        for folder in folders_in_use():
            try:
                yield cls(**json.loads((folder / _FILE).read_text()))
            except (OSError, ValueError, TypeError):
                continue  # The server has not opened its addresses, has just ended, or is of another release.

    @property
    def reachable_address(self) -> tuple[str, bool]:
        """The address on which a client of this machine reaches every route, and whether it uses TLS.

        A UNIX socket needs no certificate of the client. All addresses answer gRPC and REST.
        """
        if self.grpc_socket is not None:
            return self.grpc_socket, False
        address = self.rest or self.grpc
        assert address is not None  # HostOptions refuses a server without an address.
        return reachable(address), self.tls


def reachable(address: str) -> str:
    """Return `host:port` with the loopback address in place of a wildcard."""
    host, _, port = address.rpartition(":")
    return f"{_LOOPBACK.get(host, host)}:{port}"
