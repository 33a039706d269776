"""Deadlines on a monotonic clock that can be injected."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol


class Clock(Protocol):
    """A source of monotonic time."""

    def monotonic_s(self) -> float:
        """Return the seconds since an arbitrary start. Never decreases."""
        ...


class WaitingClock(Clock, Protocol):
    """A clock that threads can wait on, so that a test's clock decides when they wake."""

    def wait_until(self, condition: threading.Condition, at_s: float) -> None:
        """Wait on `condition`, which the caller holds, until it is notified or `at_s` is reached. `inf` means no limit.

        May return early: a time beyond the longest possible wait is no error.
        """
        ...


class SystemClock:
    """The machine's monotonic clock, which asyncio's event loops also use."""

    def __init__(self) -> None:
        """Read `time.monotonic`."""
        # The function itself, without a wrapper: every request calls it several times.
        self.monotonic_s: Callable[[], float] = time.monotonic

    def wait_until(self, condition: threading.Condition, at_s: float) -> None:
        """Wait as `WaitingClock.wait_until` does."""
        wait_s = min(max(at_s - time.monotonic(), 0.0), threading.TIMEOUT_MAX)
        condition.wait(None if at_s == math.inf else wait_s)


# A request stops waiting this long before the client's deadline, so that its response still arrives.
_FAREWELL_S: Final = 0.2


class Deadline:
    """A point in time after which the client no longer waits for the response. No one may change it.

    No frozen dataclass, because that takes three times as long to create, and most requests create one.
    """

    __slots__ = ("at_s",)

    def __init__(self, at_s: float) -> None:
        """Expire at a time of `Clock.monotonic_s`. `inf` means never."""
        self.at_s = at_s

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Deadline) and self.at_s == other.at_s

    def __hash__(self) -> int:
        return hash(self.at_s)

    def __repr__(self) -> str:
        return f"Deadline({self.at_s!r})"

    @staticmethod
    def after(timeout_s: float, clock: Clock) -> "Deadline":
        """Return the deadline `timeout_s` seconds from now."""
        return Deadline(clock.monotonic_s() + timeout_s)

    @staticmethod
    def never() -> "Deadline":
        """Return the deadline that never expires."""
        return _NEVER

    @property
    def is_finite(self) -> bool:
        """Whether this deadline can expire at all."""
        return self.at_s != math.inf

    def remaining_s(self, now_s: float) -> float:
        """Return the seconds left at `now_s`: negative after the deadline, `inf` for `never()`."""
        return self.at_s - now_s

    def patience_s(self, now_s: float) -> float | None:
        """Return for how long a request may wait so that its response still arrives, or None without a limit."""
        return self.remaining_s(now_s) - _FAREWELL_S if self.is_finite else None

    def expired(self, now_s: float) -> bool:
        """Return whether the deadline has expired at `now_s`."""
        return now_s >= self.at_s


# One object, because most requests have it.
_NEVER = Deadline(math.inf)


# A parameter of every run would concern all executors and devices. Few can end a run, and only loads need it.
_RUN_LIMIT_S: Final = ContextVar("run_limit_s", default=0.0)


@contextmanager
def limit_runs(limit_s: float) -> Iterator[None]:
    """Limit the runs that this thread dispatches in the block, for executors that can end a run."""
    token = _RUN_LIMIT_S.set(limit_s)
    try:
        yield
    finally:
        _RUN_LIMIT_S.reset(token)


def run_limit_s() -> float:
    """Return the limit of this thread's runs in seconds; 0: none. A run that takes longer raises DeadlineExceeded."""
    return _RUN_LIMIT_S.get()


def clock_time(in_s: float) -> str:
    """Return the time of day in `in_s` seconds, for people."""
    return f"{datetime.now(UTC) + timedelta(seconds=in_s):%Y-%m-%d %H:%M:%S} UTC"
