"""Ends connections of clients that a server in this process owns, and that it has no function to end.

Envoy and grpcio reset no stream whose client does not read (decision 82).
"""

import asyncio
import ipaddress
import os
import socket
from typing import TypeAlias

# The IP address and the port of a client.
Client: TypeAlias = tuple[str, int]


class ClientConnections:
    """Ends TCP connections by the addresses of their clients. One event loop's thread owns it."""

    def __init__(self) -> None:
        self._ending: set[Client] = set()

    def end(self, client: Client | None) -> None:
        """Begin to end a connection. Do nothing for None: a client of a UNIX socket has no address."""
        if client is None or client in self._ending:
            return
        self._ending.add(client)
        ending = asyncio.get_running_loop().run_in_executor(None, _shut_down, client)
        ending.add_done_callback(lambda _: self._ending.discard(client))


def _shut_down(client: tuple[str, int]) -> None:
    """Shut down the TCP connection of this process to a client's address. May take long with many connections."""
    for name in os.listdir("/proc/self/fd"):
        try:
            copy = os.dup(int(name))
        except OSError:  # Closed meanwhile.
            continue
        try:
            connection = socket.socket(fileno=copy)
        except OSError:  # No socket.
            os.close(copy)
            continue
        with connection:
            try:
                peer = connection.getpeername()
                if isinstance(peer, tuple) and (_plain(peer[0]), peer[1]) == (_plain(client[0]), client[1]):
                    connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # Not connected.
                continue


def _plain(address: str) -> str:
    """Return the IPv4 address of one that IPv6 has mapped."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)
