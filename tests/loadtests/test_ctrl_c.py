"""Tests for Ctrl-C as events, in nested blocks."""

import itertools
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from gevent.event import Event

from tpuserve_loadtests.traffic.ctrl_c import ctrl_c


@pytest.fixture(autouse=True)
def heeded() -> Iterator[None]:
    """Handle SIGINT as in a terminal, because tests that start in the background ignore it.

    Restore the other signals too, which this process ignores after a block that a signal ended.
    """
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


def test_it_reaches_every_block_that_is_being_run() -> None:
    outer, inner = Event(), Event()
    with ctrl_c(outer), ctrl_c(inner):
        signal.raise_signal(signal.SIGINT)
    assert outer.is_set()
    assert inner.is_set()


def test_pressed_before_an_inner_block_begins_it_counts_in_it() -> None:
    outer, inner = Event(), Event()
    with ctrl_c(outer):
        signal.raise_signal(signal.SIGINT)
        with ctrl_c(inner):
            assert inner.is_set()


def test_after_the_last_load_it_is_ignored_by_who_was_ended_and_by_nobody_else() -> None:
    before = signal.getsignal(signal.SIGINT)
    with ctrl_c(Event()), ctrl_c(Event()):
        pass
    assert signal.getsignal(signal.SIGINT) is before
    with ctrl_c(Event()):
        with ctrl_c(Event()):
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) != signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_pressed_at_any_instant_of_the_end_it_does_not_take_the_report_away(monkeypatch: pytest.MonkeyPatch) -> None:
    change = signal.signal

    def change_and_press(number: int, handler: Any) -> Any:  # noqa: ANN401  what the typeshed allows is a long union
        before = change(number, handler)
        signal.raise_signal(signal.SIGINT)
        return before

    try:
        with ctrl_c(Event()):
            signal.raise_signal(signal.SIGINT)
            monkeypatch.setattr(signal, "signal", change_and_press)
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:  # would end pytest
        pytest.fail("it raised KeyboardInterrupt")
    finally:
        monkeypatch.undo()  # before any code sets a signal


def test_pressed_at_any_instant_of_an_inner_blocks_end_it_reaches_the_outer_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change, changes = signal.signal, itertools.count()

    def change_and_press_once(number: int, handler: Any) -> Any:  # noqa: ANN401  as above
        before = change(number, handler)
        if next(changes) == 0:
            signal.raise_signal(signal.SIGINT)
        return before

    outer = Event()
    with ctrl_c(outer):
        with ctrl_c(Event()):
            monkeypatch.setattr(signal, "signal", change_and_press_once)
        assert outer.is_set()
        monkeypatch.undo()


def test_who_was_started_to_ignore_it_ignores_it() -> None:
    pressed = Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with ctrl_c(pressed):
        signal.raise_signal(signal.SIGINT)
    assert not pressed.is_set()
