"""Deadlines on a monotonic clock that can be injected."""

import math
import threading
import time
from dataclasses import dataclass
from typing import Protocol, Self


class Clock(Protocol):
    """A source of monotonic time."""

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...


class WaitingClock(Clock, Protocol):
    """A clock by which threads can wait, so that a test's clock decides when they wake."""

    def wait_until(self, condition: threading.Condition, at_s: float) -> None:
        """Wait on `condition`, which the caller holds, until it is notified or `at_s` has come; `inf` for no end.

        May return sooner: a time further away than threads can wait for is no error.
        """
        ...


class SystemClock:
    """The machine's monotonic clock, the one asyncio's event loops use too."""

    # The function itself: every request asks several times.
    monotonic_s = staticmethod(time.monotonic)

    def wait_until(self, condition: threading.Condition, at_s: float) -> None:
        """As `WaitingClock.wait_until`."""
        wait_s = min(max(at_s - time.monotonic(), 0.0), threading.TIMEOUT_MAX)
        condition.wait(None if at_s == math.inf else wait_s)


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in time after which nobody waits for the answer."""

    at_s: float

    @classmethod
    def after(cls, timeout_s: float, clock: Clock) -> Self:
        """The deadline `timeout_s` seconds from now."""
        return cls(clock.monotonic_s() + timeout_s)

    @classmethod
    def never(cls) -> Self:
        """A deadline that does not pass."""
        return cls(math.inf)

    @property
    def is_finite(self) -> bool:
        """Whether this deadline can pass at all."""
        return self.at_s != math.inf

    def remaining_s(self, now_s: float) -> float:
        """Seconds left at `now_s`; negative when passed, `inf` for `never()`."""
        return self.at_s - now_s

    def expired(self, now_s: float) -> bool:
        """Whether it has passed at `now_s`."""
        return now_s >= self.at_s
