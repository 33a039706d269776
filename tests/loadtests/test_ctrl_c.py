"""Ctrl-C as events, in blocks within each other."""

import signal
from collections.abc import Iterator

import pytest
from gevent.event import Event

from tpuserve_loadtests.traffic.ctrl_c import ctrl_c, ignore_more


@pytest.fixture(autouse=True)
def heeded() -> Iterator[None]:
    """As in a terminal; tests that were started in the background have it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_it_reaches_every_block_that_is_being_run() -> None:
    outer, inner = Event(), Event()
    before = signal.getsignal(signal.SIGINT)
    with ctrl_c(outer), ctrl_c(inner):
        signal.raise_signal(signal.SIGINT)
    assert outer.is_set()
    assert inner.is_set()
    assert signal.getsignal(signal.SIGINT) is before


def test_pressed_before_an_inner_block_begins_it_counts_in_it() -> None:
    outer, inner, other = Event(), Event(), Event()
    with ctrl_c(outer):
        signal.raise_signal(signal.SIGINT)
        with ctrl_c(inner):
            assert inner.is_set()
    with ctrl_c(other):
        assert not other.is_set()


def test_after_the_last_load_it_is_ignored_by_who_was_ended_and_by_nobody_else() -> None:
    pressed = Event()
    ignore_more(pressed)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with ctrl_c(Event()):
        pressed.set()
        ignore_more(pressed)
        assert signal.getsignal(signal.SIGINT) != signal.SIG_IGN
    ignore_more(pressed)
    signal.raise_signal(signal.SIGINT)


def test_who_was_started_to_ignore_it_ignores_it() -> None:
    pressed = Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with ctrl_c(pressed):
        signal.raise_signal(signal.SIGINT)
    assert not pressed.is_set()
