"""Addresses: where the host listens, once it has announced it."""

from typing import Any


class Addresses:
    """Addresses as the host announces them: `host:port` or `unix:PATH`. Any thread may call any method."""

    def __init__(self) -> None:
        """Know no address."""
        self._announced: dict[str, str | bool | None] = {"grpc": None, "rest": None, "grpc_socket": None, "tls": False}

    def announce(self, *, grpc: str | None, rest: str | None, grpc_socket: str | None, tls: bool) -> None:
        """Replace the addresses. None is an address that is off. `tls` holds for all of them."""
        self._announced = {"grpc": grpc, "rest": rest, "grpc_socket": grpc_socket, "tls": tls}

    def describe(self, *, may_control: bool) -> dict[str, Any]:
        """Return the addresses as JSON. Without `may_control` without the socket, which is a path."""
        return dict(self._announced) if may_control else {**self._announced, "grpc_socket": None}
