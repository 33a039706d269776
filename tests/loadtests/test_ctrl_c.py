"""Ctrl-C as events, in blocks within each other."""

import signal

from gevent.event import Event

from tpuserve_loadtests.traffic.ctrl_c import ctrl_c


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
