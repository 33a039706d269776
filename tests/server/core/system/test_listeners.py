"""Tests for listeners."""

import logging

import pytest

from tpuserve_server.core.system.listeners import Listeners


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
