"""SendingBudget: bounds the memory of all responses that clients have not read, and of those of each connection."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias

from tpuserve_server.core.serving.receiving import HeldBytes
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.errors import ResourceExhausted

CutReason: TypeAlias = Literal["timeout", "memory"]
CUT_REASONS: Final[tuple[CutReason, ...]] = ("timeout", "memory")
NO_ROOM: Final = (
    "Responses that clients have not read take all bytes of max_sending_bytes or max_connection_sending_bytes"
)
# Time in which a client that reads takes some bytes. Beyond it, its response is cut before those of clients that read.
_PAUSE_S: Final = 1.0
# A response of at most this share of the budget always fits.
_SMALL_SHARE: Final = 1 / 1024
# The budget looks for late responses this often in a timeout.
_LOOKS: Final = 8


class ResponseCut(OSError):
    """The server has cut the response. OSError is ASGI's signal for a client that has disconnected."""


class SendingBudget:
    """Charges responses until the server has taken all of their bytes. One event loop's thread owns it.

    If a budget is full, deliveries that their clients have not read for a second are cut until the new one fits, the
    largest first. If that is not enough, the new one is refused, unless it is small or then alone. Each delivery ends
    after a timeout without progress.
    """

    def __init__(
        self,
        total_bytes: int,
        connection_bytes: int,
        timeout_s: float,
        clock: Clock,
        trim: Callable[[], None] | None = None,
    ) -> None:
        """Set the budgets of all deliveries and of those of one connection, and the time without progress.

        `trim` is called after the end of the last of many deliveries. See HeldBytes.
        """
        self.total_bytes = total_bytes
        self.timeout_s = timeout_s
        # Deliveries that were cut.
        self.cuts: Counter[CutReason] = Counter()
        self._connection_bytes = connection_bytes
        self._clock = clock
        self._held = HeldBytes(trim)
        self._deliveries: dict[Delivery, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def held_bytes(self) -> int:
        """The bytes of all deliveries."""
        return self._held.total

    def begin(self, connection: Hashable, size_bytes: int) -> "Delivery":
        """Charge a response of `size_bytes` on `connection`. None: unknown, so that only the common budget applies.

        Use the delivery as a context manager.

        Raises:
            ResponseCut: the response does not fit, because clients read all others. None of its bytes were sent.
        """
        room = self._room(connection, size_bytes)
        if room is None:
            self.cuts["memory"] += 1
            raise ResponseCut(NO_ROOM)
        for delivery in room:
            self._cut(delivery, "memory")
        new = Delivery(self, connection, size_bytes, self._clock.monotonic_s())
        self._deliveries[new] = None
        self._held.add(connection, size_bytes)
        if self._timer is None:
            self._schedule()
        return new

    def check_room(self, connection: Hashable, size_bytes: int) -> None:
        """Check that `begin` would accept a response, for callers that can still send an error instead.

        Raises:
            ResourceExhausted: it would not. The response counts as cut.
        """
        if self._room(connection, size_bytes) is None:
            self.cuts["memory"] += 1
            raise ResourceExhausted(NO_ROOM)

    def shorten_timeout(self, timeout_s: float) -> None:
        """Shorten the time without progress, also for deliveries that have begun."""
        self.timeout_s = min(self.timeout_s, timeout_s)
        if self._timer is not None:
            self._timer.cancel()
            self._schedule()

    def cut_late(self) -> None:
        """Cut the deliveries without progress for the timeout."""
        now_s = self._clock.monotonic_s()
        for delivery in [each for each in self._deliveries if now_s - each.moved_s >= self.timeout_s]:
            self._cut(delivery, "timeout")

    def taken(self, delivery: "Delivery") -> None:
        """Record that a client took bytes now. The response is one object, so that its bytes return at its end."""
        delivery.moved_s = self._clock.monotonic_s()

    def end(self, delivery: "Delivery") -> None:
        """Forget a delivery, and return its bytes. May be called more than once."""
        if delivery in self._deliveries:
            del self._deliveries[delivery]
            self._held.add(delivery.connection, -delivery.held_bytes)

    def _room(self, connection: Hashable, size_bytes: int) -> "list[Delivery] | None":
        """Return the deliveries to cut for `size_bytes` more, or None if that is not room enough."""
        found: list[Delivery] = []
        if size_bytes <= self.total_bytes * _SMALL_SHARE:
            return found
        if connection is not None:
            over_bytes = self._held.of(connection) + size_bytes - self._connection_bytes
            if over_bytes > 0:
                siblings = [each for each in self._deliveries if each.connection == connection]
                if not self._choose(siblings, over_bytes, found):
                    return None
        over_bytes = self._held.total + size_bytes - self.total_bytes - sum(each.held_bytes for each in found)
        if over_bytes > 0 and not self._choose(
            [each for each in self._deliveries if each not in found], over_bytes, found
        ):
            return None
        return found

    def _choose(self, candidates: "list[Delivery]", over_bytes: int, found: "list[Delivery]") -> bool:
        """Add the largest candidates that are not read to `found`. Return whether that makes room, or none is left."""
        now_s = self._clock.monotonic_s()
        unread = [each for each in candidates if now_s - each.moved_s >= _PAUSE_S]
        for delivery in sorted(unread, key=lambda each: -each.held_bytes):
            if over_bytes <= 0:
                break
            found.append(delivery)
            over_bytes -= delivery.held_bytes
        return over_bytes <= 0 or len(unread) == len(candidates)

    def _cut(self, delivery: "Delivery", reason: CutReason) -> None:
        self.cuts[reason] += 1
        self.end(delivery)
        delivery.cut(reason)

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self.timeout_s / _LOOKS, self._look)

    def _look(self) -> None:
        self._timer = None
        self.cut_late()
        if self._deliveries:
            self._schedule()


class Delivery:
    """One response that its client has not read. A context manager that returns its bytes to the budget."""

    __slots__ = ("_budget", "_pending", "_reason", "connection", "held_bytes", "moved_s")

    def __init__(self, budget: SendingBudget, connection: Hashable, size_bytes: int, now_s: float) -> None:
        """Create a delivery that begins now; only `SendingBudget.begin` calls this."""
        self._budget = budget
        self._pending: asyncio.Future[Any] | None = None
        self._reason: CutReason | None = None
        self.connection = connection
        self.held_bytes = size_bytes
        # When the client last took bytes, or the beginning.
        self.moved_s = now_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Return the bytes to the budget, as the end of the context does."""
        self._budget.end(self)

    def taken(self) -> None:
        """Record that the client has taken bytes."""
        self._budget.taken(self)

    async def wait(self, sending: Awaitable[object]) -> None:
        """Wait until the server has sent bytes or taken them to send.

        Raises:
            ResponseCut: the budget cuts the delivery.
        """
        # The server owns `sending` and will set its result, so only the shield is cancelled.
        sent: asyncio.Future[object] = asyncio.ensure_future(sending)
        self._pending = asyncio.shield(sent)
        try:
            self.check()
            await self._pending
        except (asyncio.CancelledError, ResponseCut) as error:
            # asyncio logs errors that nothing reads, such as that of a client that has left.
            sent.add_done_callback(_read_error)
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and (task is None or not task.cancelling()):
                self.check()
            raise
        finally:
            self._pending = None

    def check(self) -> None:
        """Raise ResponseCut if the budget has cut the delivery."""
        if self._reason == "timeout":
            raise ResponseCut(f"The client read nothing of the response for {self._budget.timeout_s:g} seconds")
        if self._reason == "memory":
            raise ResponseCut(NO_ROOM)

    def cut(self, reason: CutReason) -> None:
        """Make the sender raise. Only the budget calls this."""
        self._reason = reason
        if self._pending is not None:
            self._pending.cancel()


def _read_error(sent: "asyncio.Future[object]") -> None:
    if not sent.cancelled():
        sent.exception()
