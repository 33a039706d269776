"""Sends responses against the budget of those that clients have not read, in parts, for any ASGI server.

A server that conforms makes `send` wait while its client takes no bytes. The budget then cuts the response, and `send`
raises ResponseCut, which is an OSError as after a disconnect.
"""

from typing import TYPE_CHECKING, Final

from tpuserve_server.core.serving.sending import SendingBudget

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from starlette.types import Message, Scope, Send

# Complete responses up to this size are sent at once, and not charged.
SMALL_BYTES: Final = 1 << 14
# A part that the server gets at once.
PART_BYTES: Final = 1 << 16
# Bytes of a response that the server takes although the client takes none: 32 parts over HTTP/1.1, 2 MiB over HTTP/2.
TAKEN_AHEAD_BYTES: Final = 32 * PART_BYTES


class ChargedResponses:
    """Charges the responses of a host to the budget. One event loop's thread owns it."""

    def __init__(self, budget: SendingBudget) -> None:
        """Charge to `budget`."""
        self._budget = budget

    def charged(self, scope: "Scope", send: "Send") -> "Send":
        """Return a `send` that charges the response to a request."""

        # A plain function returns the server's own awaitable for a small response, so that it costs nothing more.
        def send_on(message: "Message") -> "Awaitable[None]":
            body = message.get("body")
            if body is None or (len(body) <= SMALL_BYTES and not message.get("more_body", False)):
                return send(message)
            return self._deliver(scope, send, message, body)

        return send_on

    async def _deliver(self, scope: "Scope", send: "Send", message: "Message", body: bytes) -> None:
        with self._budget.begin(scope.get("client"), len(body)) as delivery:
            more_body, at = message.get("more_body", False), 0
            while len(body) - at > PART_BYTES:
                await delivery.wait(send({**message, "body": body[at : at + PART_BYTES], "more_body": True}))
                at += PART_BYTES
                if at > TAKEN_AHEAD_BYTES:
                    delivery.taken()
            await delivery.wait(send({**message, "body": body[at:], "more_body": more_body}))
