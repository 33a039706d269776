"""ReceivingBudget: bounds the memory of all requests that are still arriving, and of those of each connection."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Hashable
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from tpuserve_server.core.system.cancellation import take_back
from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.core.terms.errors import DeadlineExceeded, ResourceExhausted, ServingError

# Fewer bytes are not worth a search for free pages.
_TRIM_BYTES: Final = 32 << 20


class HeldBytes:
    """Count of charged bytes. One event loop's thread owns it."""

    __slots__ = ("_by_connection", "_most", "_trim", "total")

    def __init__(self, trim: Callable[[], None] | None = None) -> None:
        """Start with no bytes.

        `trim` is called when the last of many bytes is returned: the C library keeps the memory of freed parts.
        """
        self.total = self._most = 0
        # A Counter's own methods take four times as long, and each chunk of a request calls them.
        self._by_connection: dict[Hashable, int] = {}
        self._trim = trim

    def of(self, connection: Hashable) -> int:
        """Return the bytes of a connection."""
        return self._by_connection.get(connection, 0)

    def add(self, connection: Hashable, size_bytes: int) -> None:
        """Charge bytes, or return them if `size_bytes` is negative. None: an unknown connection."""
        self.total = total = self.total + size_bytes
        if total > self._most:
            self._most = total
        elif not total:
            if self._trim is not None and self._most >= _TRIM_BYTES:
                self._trim()
            self._most = 0
        if connection is not None:
            held = self._by_connection
            if of_connection := held.get(connection, 0) + size_bytes:
                held[connection] = of_connection
            else:
                held.pop(connection, None)


_T = TypeVar("_T")
# Time constant of an upload's rate: a client that stalls for a few seconds becomes slower than one that begins.
_MEMORY_S: Final = 1.0
# A request that has just arrived is cut last if it has at most this share of the budget.
_SMALL_SHARE: Final = 1 / 1024
# The longest pause of a client in the middle of a request's body.
IDLE_TIMEOUT_S: Final = 30.0
_STALLED: Final = f"The client sent no more of the request's body for {IDLE_TIMEOUT_S:g} seconds"


class ReceivingBudget:
    """Charges bytes as they arrive. One event loop's thread owns it and its uploads.

    If a budget is full, the slowest uploads are cut until the new bytes fit: clients that stall lose their place to
    clients that send. Small requests that have just arrived are cut last: a few bytes show no rate.
    """

    def __init__(
        self, total_bytes: int, connection_bytes: int, clock: Clock, trim: Callable[[], None] | None = None
    ) -> None:
        """Set the budgets of all uploads and of those of one connection.

        `trim` is called after the end of the last of many uploads. See HeldBytes.
        """
        self._held = HeldBytes(trim)
        # Size of the budget of all uploads.
        self.total_bytes = total_bytes
        # Uploads that were cut because the budget of all uploads or of a connection was full.
        self.refusals = 0
        # Requests that were refused because their message or body alone was over its limit.
        self.oversized = 0
        self._connection_bytes = connection_bytes
        self._clock = clock
        self._uploads: dict[Upload, None] = {}

    @property
    def held_bytes(self) -> int:
        """The bytes of all uploads."""
        return self._held.total

    def begin(self, connection: Hashable = None) -> "Upload":
        """Begin a request on `connection`. None: unknown, so that only the budget of all uploads applies.

        Use the upload as a context manager.
        """
        return Upload(self, connection, self._clock)

    def charge(self, upload: "Upload", size_bytes: int) -> None:
        """Charge `size_bytes` more to `upload`, and cut slower uploads if they do not fit.

        Raises:
            ResourceExhausted: `upload` itself is the slowest.
        """
        now_s = upload.arrive(size_bytes)
        connection, held = upload.connection, self._held
        if connection is not None:
            over_bytes = held.of(connection) + size_bytes - self._connection_bytes
            if over_bytes > 0:
                siblings = [each for each in self._uploads if each.connection == connection]
                why = f"this connection take all {self._connection_bytes} bytes of max_connection_receiving_bytes"
                self._make_room(upload, siblings, over_bytes, now_s, why)
        over_bytes = held.total + size_bytes - self.total_bytes
        if over_bytes > 0:
            why = f"all clients take all {self.total_bytes} bytes of max_receiving_bytes"
            self._make_room(upload, list(self._uploads), over_bytes, now_s, why)
        if not upload.held_bytes:
            self._uploads[upload] = None
        held.add(connection, size_bytes)

    def release(self, upload: "Upload", size_bytes: int) -> None:
        """Return `size_bytes` of an upload."""
        self._held.add(upload.connection, -size_bytes)

    def end(self, upload: "Upload") -> None:
        """Forget an upload, and return its bytes. May be called more than once."""
        if upload in self._uploads:
            del self._uploads[upload]
            self._held.add(upload.connection, -upload.held_bytes)

    def _make_room(self, charged: "Upload", others: "list[Upload]", over_bytes: int, now_s: float, why: str) -> None:
        message = f"The requests that are still arriving from {why}. Send the request again later"
        small_bytes = self.total_bytes * _SMALL_SHARE
        for upload in sorted({*others, charged}, key=lambda each: each.rank(now_s, small_bytes)):
            upload.cut(ResourceExhausted(message))
            self.refusals += 1
            if upload is charged:
                raise ResourceExhausted(message)
            over_bytes -= upload.held_bytes
            if over_bytes <= 0:
                return


class Upload:
    """One request that is still arriving. A context manager that returns its bytes to the budget."""

    __slots__ = (
        "_arrived_s", "_budget", "_charged_bytes", "_clock", "_cut", "_rate", "_reader", "_stalling", "_task",
        "_waits_since_s", "connection", "held_bytes",
    )  # fmt: skip

    def __init__(self, budget: ReceivingBudget, connection: Hashable, clock: Clock) -> None:
        """Create an upload without bytes; only `ReceivingBudget.begin` calls this."""
        self._budget = budget
        self._clock = clock
        self._rate = self._arrived_s = 0.0
        # The bytes that it held after its last arrival. `held_bytes` follows only once they fit.
        self._charged_bytes = 0
        # Why another upload, this one, or its timeout has cut it.
        self._cut: ServingError | None = None
        # The task that reads the upload, and the same while it waits for bytes.
        self._task: asyncio.Task[Any] | None = None
        self._reader: asyncio.Task[Any] | None = None
        self._waits_since_s = 0.0
        self._stalling: asyncio.TimerHandle | None = None
        self.connection = connection
        # After a cut: the bytes that it held.
        self.held_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Return the bytes to the budget, as the end of the context does."""
        self._budget.end(self)
        if self._stalling is not None:
            self._stalling.cancel()
            self._stalling = None

    def count_oversized(self) -> None:
        """Count the message as one over its limit."""
        self._budget.oversized += 1

    def hold(self, size_bytes: int) -> None:
        """Set the number of bytes that the reader holds. Raises ResourceExhausted if they do not fit the budget."""
        if self._cut is not None:
            raise self._cut.copy()
        more_bytes = size_bytes - self.held_bytes
        if more_bytes > 0:
            self._budget.charge(self, more_bytes)
        elif more_bytes:
            self._budget.release(self, -more_bytes)
        self.held_bytes = size_bytes

    def grow(self, size_bytes: int) -> None:
        """Hold `size_bytes`, but leave the last ones uncharged while they are less than an eighth of the others.

        A large request has a thousand chunks, and the charge costs more than the copy of a chunk.
        """
        if 8 * size_bytes >= 9 * self.held_bytes:
            self.hold(size_bytes)

    async def wait(self, receiving: Awaitable[_T]) -> _T:
        """Wait for the next bytes. The first task that waits must be the only one.

        Raises:
            ResourceExhausted: another upload cuts this one.
            DeadlineExceeded: the upload holds bytes, and no more arrive for IDLE_TIMEOUT_S.
        """
        if (cut := self._cut) is not None:
            raise cut.copy()
        if self.held_bytes and self._stalling is None:
            self._stalling = asyncio.get_running_loop().call_later(IDLE_TIMEOUT_S, self._look)
        # A future around `receiving` would cost more than the rest for each of the many pieces of a body.
        if (reader := self._task) is None:
            self._task = reader = asyncio.current_task()
        self._reader = reader
        self._waits_since_s = self._clock.monotonic_s()
        try:
            return await receiving
        except asyncio.CancelledError:
            if self._cut is not None and self._reader is None and reader is not None and take_back(reader):
                raise self._cut.copy() from None
            raise
        finally:
            self._reader = None

    def arrive(self, size_bytes: int) -> float:
        """Record bytes that arrive now, and return the time."""
        now_s = self._clock.monotonic_s()
        # As `rate`, in place: a large request has a thousand chunks.
        self._rate = self._rate * math.exp((self._arrived_s - now_s) / _MEMORY_S) + size_bytes / _MEMORY_S
        self._arrived_s = now_s
        self._charged_bytes = self.held_bytes + size_bytes
        return now_s

    def rate(self, now_s: float) -> float:
        """Return the bytes per second of the last seconds, an exponentially weighted mean."""
        return self._rate * math.exp((self._arrived_s - now_s) / _MEMORY_S)

    def rank(self, now_s: float, small_bytes: float) -> tuple[bool, float]:
        """Return the place in the order of cuts, the lowest first: small requests that have just arrived come last."""
        rate = self.rate(now_s)
        # A second after its last byte, a request that arrived at once has lost its place.
        just_arrived = rate * _MEMORY_S * math.e >= self._charged_bytes
        return self._charged_bytes <= small_bytes and just_arrived, rate

    def cut(self, why: ServingError) -> None:
        """Return the bytes to the budget, and make the reader raise `why`."""
        self._cut = why
        self._budget.end(self)
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None

    def _look(self) -> None:
        """Cut the upload if it has waited for the timeout, or look again when it will have."""
        self._stalling = None
        if self._reader is None or not self.held_bytes:
            return
        left_s = self._waits_since_s + IDLE_TIMEOUT_S - self._clock.monotonic_s()
        if left_s > 0:
            self._stalling = asyncio.get_running_loop().call_later(left_s, self._look)
        else:
            self.cut(DeadlineExceeded(_STALLED))
