"""Tests that timers fire on time, except cancelled ones: those on one timer of a loop, and those on one thread."""

import queue
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import pytest

from tests.support.fake_device import FakeClock
from tpuserve_server.core.system.timers import RareTimers, RareTimersByLoop, VersionTimer
from tpuserve_server.core.terms.deadline import SystemClock, WaitingClock
from tpuserve_server.core.terms.types import ServableId

if TYPE_CHECKING:
    import asyncio


class SteppedTimer:
    """The handle that `call_at` returns."""

    def __init__(self, at_s: float, call: Callable[[], None]) -> None:
        self.at_s = at_s
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class SteppedLoop:
    """The clock and timers of an event loop that RareTimers needs. `advance` runs the due timers."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.timers: list[SteppedTimer] = []
        self.closed = False

    def time(self) -> float:
        return self.now_s

    def is_closed(self) -> bool:
        return self.closed

    def call_at(self, at_s: float, call: Callable[[], None]) -> SteppedTimer:
        self.timers.append(SteppedTimer(at_s, call))
        return self.timers[-1]

    @property
    def waiting(self) -> list[SteppedTimer]:
        return [timer for timer in self.timers if not timer.is_cancelled]

    def advance(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while due := [timer for timer in self.waiting if timer.at_s <= end_s]:
            first = min(due, key=lambda timer: timer.at_s)
            self.timers.remove(first)
            self.now_s = max(self.now_s, first.at_s)
            first.call()
        self.now_s = end_s


@pytest.fixture
def loop() -> SteppedLoop:
    return SteppedLoop()


@pytest.fixture
def timers(loop: SteppedLoop) -> RareTimers:
    return RareTimers(cast("asyncio.AbstractEventLoop", loop))


def test_each_fires_once_at_its_time(loop: SteppedLoop, timers: RareTimers) -> None:
    fired: list[tuple[str, float]] = []
    for name, delay_s in (("late", 5.0), ("soon", 1.0), ("later", 9.0), ("sooner", 0.5)):
        timers.start(name, delay_s, lambda name=name: fired.append((name, loop.time() - 100)))  # type: ignore[misc]
    loop.advance(20)
    assert fired == [("sooner", 0.5), ("soon", 1.0), ("late", 5.0), ("later", 9.0)]
    assert loop.waiting == []


def test_what_is_cancelled_never_fires(loop: SteppedLoop, timers: RareTimers) -> None:
    fired: list[str] = []
    timers.start("kept", 2.0, lambda: fired.append("kept"))
    timers.start("cancelled", 1.0, lambda: fired.append("cancelled"))
    timers.cancel("cancelled")
    timers.cancel("never started")
    loop.advance(10)
    assert fired == ["kept"]


def test_a_call_may_cancel_and_start_others(loop: SteppedLoop, timers: RareTimers) -> None:
    fired: list[str] = []

    def first() -> None:
        timers.cancel("other")
        timers.start("next", 1.0, lambda: fired.append("next"))

    timers.start("first", 1.0, first)
    timers.start("other", 3.0, lambda: fired.append("other"))
    loop.advance(10)
    assert fired == ["next"]


def test_a_thousand_that_are_cancelled_take_one_timer_of_the_loop(loop: SteppedLoop, timers: RareTimers) -> None:
    for number in range(1000):
        timers.start(number, 30.0, lambda: None)
        timers.cancel(number)
        loop.advance(0.001)
    assert len(loop.waiting) == 1


def test_loops_that_were_closed_are_forgotten(loop: SteppedLoop) -> None:
    by_loop = RareTimersByLoop()
    theirs = by_loop.of(cast("asyncio.AbstractEventLoop", loop))
    assert by_loop.of(cast("asyncio.AbstractEventLoop", loop)) is theirs
    loop.closed = True
    by_loop.of(cast("asyncio.AbstractEventLoop", SteppedLoop()))
    loop.closed = False
    assert by_loop.of(cast("asyncio.AbstractEventLoop", loop)) is not theirs


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
