"""Exchanges: the protocols of a REST application, each under its prefix."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tpuserve_server.core.batching.task import Waiter
from tpuserve_server.protocols.exchange import Exchange, ExchangeCall

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope


class Exchanges:
    """The exchange of each prefix. Prefixes match case-insensitively, in their order."""

    def __init__(self, exchanges: Iterable[tuple[str, Exchange]]) -> None:
        """Store the exchanges, with their prefixes in lower case."""
        self._exchanges = [(prefix, len(prefix), exchange) for prefix, exchange in exchanges]

    def find(self, path: str) -> Exchange | None:
        """Return the exchange that answers a path, or None."""
        for prefix, length, exchange in self._exchanges:
            if path[:length].lower() == prefix:
                return exchange
        return None

    def begin(self, scope: "Scope", message: "Message", receive: "Receive", waiter: Waiter) -> ExchangeCall | None:
        """Begin a request without a task, or return None before any effect. See `Exchange.begin`."""
        exchange = self.find(scope["path"])
        return None if exchange is None else exchange.begin(scope, message, receive, waiter)
