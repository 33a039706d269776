"""Tests for the timers of a connection, on a clock that the test sets."""

import asyncio

from tests.server.hosts.http1.test_connection import Timers, Transport
from tpuserve_server.hosts.http1.timers import LazyTimer, UnsentWatch


def lazy_timer() -> tuple[Timers, LazyTimer]:
    timers = Timers(asyncio.get_running_loop())
    return timers, LazyTimer(timers)  # type: ignore[arg-type]


async def test_a_stopped_timer_calls_nothing() -> None:
    timers, timer = lazy_timer()
    calls: list[float] = []
    timer.start(1.0, lambda: calls.append(timers.now_s))
    timer.stop()
    timers.fire()
    assert calls == []
    assert timers.due is None


async def test_a_timer_that_starts_again_calls_once_at_its_last_time() -> None:
    timers, timer = lazy_timer()
    calls: list[float] = []

    def note() -> None:
        calls.append(timers.now_s)

    timer.start(2.0, note)
    timer.start(1.0, note)
    timers.now_s = 0.5
    timer.start(1.0, note)
    timers.fire()
    timers.fire()
    assert calls == [1.5]


class Unsent(Transport):
    """A transport whose client has yet to take `size_bytes`."""

    size_bytes = 10
    aborted = False

    def get_write_buffer_size(self) -> int:
        return self.size_bytes

    def abort(self) -> None:
        self.aborted = True


async def test_a_hurried_watch_lasts_until_all_bytes_are_sent() -> None:
    timers, timer = lazy_timer()
    transport = Unsent()
    watch = UnsentWatch(transport, timer, 30.0)
    watch.start()
    watch.hurry(1.0)
    watch.stop()
    transport.size_bytes = 5
    timers.fire()
    assert (timers.now_s, transport.aborted) == (1.0, False)
    transport.size_bytes = 0
    timers.fire()
    assert timers.due is None
    assert not transport.aborted


async def test_a_client_that_takes_bytes_in_time_keeps_its_connection() -> None:
    timers, timer = lazy_timer()
    transport = Unsent()
    UnsentWatch(transport, timer, 1.0).start()
    transport.size_bytes = 5
    timers.fire()
    assert not transport.aborted
    timers.fire()
    assert transport.aborted
