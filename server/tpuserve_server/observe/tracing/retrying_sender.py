"""RetryingSender: sends OTLP requests again that a receiver could not take (OpenTelemetry's protocol/otlp.md)."""

import random
import threading
from collections.abc import Callable
from typing import Final

from tpuserve_server.core.terms.deadline import Clock
from tpuserve_server.observe.tracing.export_error import ExportError
from tpuserve_server.observe.tracing.receiver_reply import Rejection
from tpuserve_server.observe.tracing.transport import Transport

# Pause before the first retry. It doubles with each further one. The doubling bounds their number: with the default
# timeout of 10 s there are at most five.
_FIRST_PAUSE_S: Final = 0.5
# The random part keeps servers from sending again all at once.
_LEAST_SHARE: Final = 0.5
# Limit of an export after `hurry`. Hosts wait 5 s for all parts of the application (`hosts/ending.py`).
_LAST_SEND_S: Final = 2.0


class RetryingSender:
    """Sends requests to one receiver. One thread calls `send`, any thread `hurry` and `close`."""

    def __init__(
        self, transport: Transport, timeout_s: float, clock: Clock, draw: Callable[[], float] = random.random
    ) -> None:
        """Limit a request with all its retries to `timeout_s`. `draw` returns a number from 0 up to 1."""
        self._transport = transport
        self._timeout_s = timeout_s
        self._clock = clock
        self._draw = draw
        self._hurried = threading.Event()

    @property
    def is_hurried(self) -> bool:
        """Whether `hurry` was called."""
        return self._hurried.is_set()

    def send(self, body: bytes) -> Rejection:
        """Send a request until the receiver takes it, refuses it, or the time does not suffice for another retry.

        Blocks for at most about the timeout. Raises the ExportError of the last attempt.
        """
        pause_s, ends_s = _FIRST_PAUSE_S, self._ends_s()
        while True:
            try:
                return self._transport.send(body, max(ends_s - self._clock.monotonic_s(), 0.001))
            except ExportError as error:
                if error.retry_after_s is None or self._hurried.is_set():
                    raise
                wait_s = max(pause_s * (_LEAST_SHARE + _LEAST_SHARE * self._draw()), error.retry_after_s)
                if self._clock.monotonic_s() + wait_s >= ends_s:
                    raise
            if self._hurried.wait(wait_s):
                ends_s = min(ends_s, self._ends_s())
            pause_s *= 2

    def hurry(self) -> None:
        """End the pause before a retry, and make no further ones. Later requests get little time."""
        self._hurried.set()

    def close(self) -> None:
        """End the connection, and a `send` that waits on it."""
        self._transport.close()

    def _ends_s(self) -> float:
        limit_s = min(self._timeout_s, _LAST_SEND_S) if self._hurried.is_set() else self._timeout_s
        return self._clock.monotonic_s() + limit_s
