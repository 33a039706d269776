"""Responses that Envoy holds for clients that do not read: Envoy's limits of them, what it holds, and how to end them.

The embedding's `send` waits while the stream or the connection holds more than BUFFER_BYTES. It cannot reset a stream
that waits so. After the end of a response it reports a disconnect once Envoy has sent all bytes.
"""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from tpuserve_server.core.budgets.sending import Delivery, SendingBudget
from tpuserve_server.hosts.disconnects import DISCONNECT
from tpuserve_server.hosts.unread_response import PART_BYTES

if TYPE_CHECKING:
    from starlette.types import Receive

# Bytes of a stream, and of a connection, beyond which Envoy takes no more. Also the window of an upload's stream.
BUFFER_BYTES: Final = 1 << 18
# Bytes of a response that Envoy takes before its client does.
KEPT_BYTES: Final = BUFFER_BYTES + PART_BYTES
# While the budget holds less than this share, Envoy is asked only at intervals.
_IDLE_SHARE: Final = 1 / 64
_INTERVAL_S: Final = 0.5
_MOST_ASKED: Final = 256
# The budget's timeout for bytes that Envoy holds is longer than Envoy's own by this share.
_LATER: Final = 0.5


class UnsentByEnvoy:
    """Ends the deliveries of responses that Envoy has, once it has sent them. One event loop's thread owns it."""

    def __init__(self, budget: SendingBudget) -> None:
        """Return bytes to `budget`."""
        self._budget = budget
        # The embedding's `receive` by delivery, in the order in which it was last asked.
        self._unsent: dict[Delivery, Receive] = {}
        self._timer: asyncio.TimerHandle | None = None

    def keep(self, delivery: Delivery, receive: "Receive") -> None:
        """Keep a delivery whose last byte Envoy has."""
        # Envoy has the same timeout, and resets only the stream.
        delivery.unseen_s = _LATER * self._budget.timeout_s
        self._unsent[delivery] = receive
        if self._budget.held_bytes > self._budget.total_bytes * _IDLE_SHARE:
            self._ask(delivery)
        if self._timer is None:
            self._schedule()

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_INTERVAL_S, self._look)

    def _look(self) -> None:
        self._timer = None
        for delivery in list(self._unsent)[:_MOST_ASKED]:
            self._ask(delivery)
        if self._unsent:
            self._schedule()

    def _ask(self, delivery: Delivery) -> None:
        receive = self._unsent.pop(delivery)
        if not delivery.is_cut:
            asyncio.ensure_future(receive()).add_done_callback(partial(self._answered, delivery, receive))

    def _answered(self, delivery: Delivery, receive: "Receive", answer: "asyncio.Future[object]") -> None:
        """Handle a message of the embedding: an empty body as long as Envoy holds bytes of the response."""
        message = None if answer.cancelled() or answer.exception() is not None else answer.result()
        if not isinstance(message, dict) or message["type"] == DISCONNECT:
            self._budget.ended(delivery)
        elif not delivery.is_cut:
            self._unsent[delivery] = receive
            if self._timer is None:
                self._schedule()
