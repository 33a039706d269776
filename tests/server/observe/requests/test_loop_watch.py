"""Tests for the report of an event loop that stands still."""

import asyncio
import logging
import threading

import pytest

from tpuserve_server.observe.requests.loop_watch import LoopWatch


def stand_still(watch_has_logged: threading.Event) -> None:
    """Block the thread of the event loop until the log has a line."""
    assert watch_has_logged.wait(60)


class Lines(logging.Handler):
    """Keeps messages, and tells when there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []
        self.logged = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        self.logged.set()


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture(autouse=True)
def log(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger(LoopWatch.__module__)
    monkeypatch.setattr(logger, "handlers", [lines])
    monkeypatch.setattr(logger, "propagate", False)


async def test_loop_that_stands_still_is_logged_with_its_line_and_its_end(lines: Lines) -> None:
    watch = LoopWatch(limit_s=0.05)
    watch.start()
    stand_still(lines.logged)
    lines.logged.clear()
    await asyncio.to_thread(lines.logged.wait, 60)
    watch.stop()
    still, again = lines.messages
    assert still.startswith("The event loop has not run for ")
    assert "stand_still" in still
    assert again.startswith("The event loop runs again, after ")


async def test_stop_does_not_wait_for_a_loop_that_stands_still(lines: Lines) -> None:
    watch = LoopWatch(limit_s=0.05)
    watch.start()
    stand_still(lines.logged)
    # This loop still stands.
    watch.stop()
    assert len(lines.messages) == 1


async def test_a_loop_that_runs_is_not_logged_and_a_watch_without_a_start_stops(lines: Lines) -> None:
    LoopWatch().stop()
    watch = LoopWatch(limit_s=60)
    watch.start()
    await asyncio.sleep(1.5)
    await asyncio.to_thread(watch.stop)
    assert lines.messages == []
