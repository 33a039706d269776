"""Interrupts a call: its deadline passed, its client disconnected, or the server shuts down."""

import asyncio
from typing import Any

from tpuserve_server.core.system.cancellation import take_back
from tpuserve_server.core.system.timers import RareTimers, RareTimersByLoop
from tpuserve_server.core.terms.deadline import Clock, Deadline
from tpuserve_server.core.terms.errors import Code, DeadlineExceeded
from tpuserve_server.hosts.grpc.failure import SHUTTING_DOWN, RpcFailure

_DEADLINE_PASSED = RpcFailure(Code.DEADLINE_EXCEEDED, "Deadline Exceeded")
_CALLER_LEFT = RpcFailure(Code.CANCELLED, "The client disconnected")


class Interruption:
    """Cancels the task that created it, at most once, and returns the status for that cancellation."""

    __slots__ = ("_reason", "_task", "_timers")

    def __init__(
        self,
        deadline: Deadline,
        clock: Clock,
        timers: RareTimersByLoop,
        task: asyncio.Task[Any] | None = None,
    ) -> None:
        """Arm the deadline. `task` is the current one: to find it takes a system call up to Python 3.11.

        Raises DeadlineExceeded if the deadline has already passed, so that the work never begins.
        """
        self._task = task or asyncio.current_task()
        self._reason: RpcFailure | None = None
        self._timers: RareTimers | None = None
        if deadline.is_finite:
            remaining_s = deadline.remaining_s(clock.monotonic_s())
            if remaining_s <= 0:
                raise DeadlineExceeded(_DEADLINE_PASSED.message)
            # A timer of the event loop for each call would take 50 % more time.
            self._timers = timers.of(asyncio.get_running_loop())
            self._timers.start(self, remaining_s, self._expire)

    def leave(self) -> None:
        """Interrupt the call because the client disconnected."""
        self._interrupt(_CALLER_LEFT)

    def shut_down(self) -> None:
        """Interrupt the call because the server shuts down."""
        self._interrupt(SHUTTING_DOWN)

    def disarm(self) -> None:
        """Disable the interruption, because the call has ended."""
        self._task = None
        if self._timers is not None:
            self._timers.cancel(self)

    def absorb(self, cancelled: asyncio.CancelledError) -> RpcFailure:
        """Return the status for `cancelled`. Raise it again unless this interruption is its only cause."""
        if self._reason is None or self._task is None or not take_back(self._task):
            raise cancelled
        return self._reason

    def _expire(self) -> None:
        self._interrupt(_DEADLINE_PASSED)

    def _interrupt(self, reason: RpcFailure) -> None:
        if self._reason is None and self._task is not None:
            self._reason = reason
            self._task.cancel()
