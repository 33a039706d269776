"""Sends responses against the budget of those that clients have not read, in parts, for any ASGI server.

A server that conforms makes `send` wait while its client takes no bytes. The budget then cuts the response, and `send`
raises ResponseCut, which is an OSError as after a disconnect.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from tpuserve_server.core.budgets.sending import Delivery, ResponseCut, SendingBudget
from tpuserve_server.hosts.client_connections import Client

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from starlette.types import Message, Receive, Scope, Send

# Complete responses up to this size are sent at once, and not charged.
SMALL_BYTES: Final = 1 << 14
# A part that the server gets at once.
PART_BYTES: Final = 1 << 17


class ChargedResponses:
    """Charges the responses of a host to the budget. One event loop's thread owns it."""

    def __init__(
        self,
        budget: SendingBudget,
        *,
        end_connection: Callable[[Client | None], None] | None = None,
        keep: "Callable[[Delivery, Receive], None] | None" = None,
        keep_bytes: int = 0,
    ) -> None:
        """Charge to `budget`.

        Some servers accept up to `keep_bytes` of a response before its client takes them. `keep` gets its delivery
        after the last byte. `end_connection` ends the connection of a client whose response is cut.
        """
        self._budget = budget
        self._end_connection = end_connection
        self._keep = keep
        self._keep_bytes = keep_bytes

    def charged(self, scope: "Scope", receive: "Receive", send: "Send") -> "Send":
        """Return a `send` that charges the response to a request."""

        # A plain function returns the server's own awaitable for a small response, so that it costs nothing more.
        def send_on(message: "Message") -> "Awaitable[None]":
            body = message.get("body")
            if body is None or (len(body) <= SMALL_BYTES and not message.get("more_body", False)):
                return send(message)
            return self._deliver(scope, receive, send, message, body)

        return send_on

    async def _deliver(self, scope: "Scope", receive: "Receive", send: "Send", message: "Message", body: bytes) -> None:
        client = scope.get("client")
        abort = None if self._end_connection is None else partial(self._end_connection, client)
        try:
            delivery = self._budget.begin(client, len(body), abort)
        except ResponseCut:
            # The server may have sent the head of the response.
            if abort is not None:
                abort()
            raise
        try:
            more_body, at = message.get("more_body", False), 0
            while len(body) - at > PART_BYTES:
                part = body[at : at + PART_BYTES]
                await delivery.wait(send({**message, "body": part, "more_body": True}))
                at += PART_BYTES
                delivery.taken(max(delivery.held_bytes - max(len(body) - at, self._keep_bytes), 0))
            await delivery.wait(send({**message, "body": body[at:], "more_body": more_body}))
        except BaseException:
            delivery.end()
            raise
        if more_body or self._keep is None:
            delivery.end()
        else:
            self._keep(delivery, receive)
