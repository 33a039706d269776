"""Sends responses against the budget of those that clients have not read, in parts, for any ASGI server.

A server that conforms makes `send` wait while its client takes no bytes. The budget then cuts the response, and `send`
raises ResponseCut, which is an OSError as after a disconnect.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tpuserve_server.core.budgets.sending import Delivery, ResponseCut, SendingBudget

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from starlette.types import Message, Scope, Send

# Complete responses up to this size are sent at once, and not charged.
SMALL_BYTES: Final = 1 << 14
# A part that the server gets at once.
PART_BYTES: Final = 1 << 17


def charged(
    send: "Send",
    scope: "Scope",
    budget: SendingBudget,
    *,
    abort: Callable[[], object] | None = None,
    keep_bytes: int = 0,
    keep: Callable[[Delivery], None] = Delivery.end,
) -> "Send":
    """Return a `send` that charges the response to `budget`.

    Some servers accept bytes before their client takes them, up to `keep_bytes` of a response. They get its delivery by
    `keep` after the last byte, and end the client's connection in `abort` after a cut.
    """

    # A plain function returns the server's own awaitable for a small response, so that it costs nothing more.
    def send_on(message: "Message") -> "Awaitable[None]":
        body = message.get("body")
        if body is None or (len(body) <= SMALL_BYTES and not message.get("more_body", False)):
            return send(message)
        return deliver(message, body)

    async def deliver(message: "Message", body: bytes) -> None:
        try:
            delivery = budget.begin(scope.get("client"), len(body), abort)
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
                delivery.taken(max(delivery.held_bytes - max(len(body) - at, keep_bytes), 0))
            await delivery.wait(send({**message, "body": body[at:], "more_body": more_body}))
        except BaseException:
            delivery.end()
            raise
        if more_body:
            delivery.end()
        else:
            keep(delivery)

    return send_on
