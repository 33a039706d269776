"""Tests that retries run when due, and never after their cancellation or the timer's stop."""

import queue

import pytest

from tests.support.fake_device import FakeClock
from tpuserve_server.core.system.version_timer import VersionTimer
from tpuserve_server.core.terms.deadline import SystemClock, WaitingClock
from tpuserve_server.core.terms.types import ServableId

A, B = ServableId("a", 1), ServableId("b", 1)
FOR_EVER_S = 1e9


class Timer:
    def __init__(self, clock: WaitingClock | None = None) -> None:
        self.called: queue.Queue[ServableId] = queue.Queue()
        self.timer = VersionTimer(clock or SystemClock(), self.called.put, name="timer")


def test_each_is_called_once_when_it_is_due() -> None:
    timer = Timer()
    timer.timer.set(A, FOR_EVER_S)
    timer.timer.set(B, 0)
    assert timer.called.get(timeout=120) == B
    timer.timer.set(A, 0)
    assert timer.called.get(timeout=120) == A
    timer.timer.stop()
    assert timer.called.empty()


def test_the_earlier_comes_first() -> None:
    clock = FakeClock()
    timer = Timer(clock)
    timer.timer.set(A, 2)
    timer.timer.set(B, 1)
    while clock.waits.get(timeout=120) != clock.now_s + 1:
        pass
    clock.advance(1)
    assert timer.called.get(timeout=120) == B
    while clock.waits.get(timeout=120) != clock.now_s + 1:
        pass
    assert timer.called.empty()
    clock.advance(1)
    assert timer.called.get(timeout=120) == A
    timer.timer.stop()


def test_what_was_cancelled_is_not_called() -> None:
    timer = Timer()
    timer.timer.set(A, FOR_EVER_S)
    timer.timer.cancel(A)
    timer.timer.cancel(A)
    timer.timer.set(B, 0)
    assert timer.called.get(timeout=120) == B
    timer.timer.stop()


def test_nothing_is_called_after_stop() -> None:
    timer = Timer()
    timer.timer.stop()
    timer.timer.set(A, 0)
    with pytest.raises(queue.Empty):
        timer.called.get_nowait()
