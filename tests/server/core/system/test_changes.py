"""Tests that a change on any thread wakes the task that awaits it, in any order, and reaches every listener."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from tpuserve_server.core.system.changes import ChangeEvent, Listeners, wait_until


class Changing:
    def __init__(self) -> None:
        self.value = 0
        self.listeners: list[Callable[[], None]] = []

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def set(self, value: int) -> None:
        self.value = value
        for listener in self.listeners:
            listener()


async def test_a_condition_that_holds_is_not_waited_for() -> None:
    changing = Changing()
    await wait_until(changing.subscribe, lambda: True)
    assert changing.listeners == []


async def test_a_condition_is_looked_at_after_each_change_from_any_thread() -> None:
    changing = Changing()
    waiting = asyncio.create_task(wait_until(changing.subscribe, lambda: changing.value == 2))
    await asyncio.sleep(0)
    await asyncio.to_thread(changing.set, 1)
    assert not waiting.done()
    await asyncio.to_thread(changing.set, 2)
    await waiting
    assert changing.listeners == []


async def test_what_a_condition_raises_ends_the_wait() -> None:
    changing = Changing()
    with pytest.raises(ZeroDivisionError):
        await wait_until(changing.subscribe, lambda: bool(1 // changing.value))
    assert changing.listeners == []


def test_a_change_after_the_loop_has_gone_is_nobodys() -> None:
    async def make() -> ChangeEvent:
        return ChangeEvent()

    event = asyncio.run(make())
    event()


def test_listeners_are_called_until_they_unsubscribe() -> None:
    listeners, heard = Listeners("the clock"), list[str]()
    leave = listeners.subscribe(lambda: heard.append("first"))
    listeners.subscribe(lambda: heard.append("second"))
    listeners.notify()
    leave()
    listeners.notify()
    assert heard == ["first", "second", "second"]


def test_a_listener_may_unsubscribe_while_it_is_called() -> None:
    listeners, heard = Listeners("the clock"), list[str]()

    def once() -> None:
        heard.append("once")
        leave()

    leave = listeners.subscribe(once)
    listeners.subscribe(lambda: heard.append("always"))
    listeners.notify()
    listeners.notify()
    assert heard == ["once", "always", "always"]


def test_a_listener_that_fails_is_logged_and_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    listeners, heard = Listeners("the clock"), list[str]()

    def fail() -> None:
        raise RuntimeError("a bug")

    listeners.subscribe(fail)
    listeners.subscribe(lambda: heard.append("second"))
    listeners.notify()
    assert heard == ["second"]
    [record] = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "A listener to the clock failed")
