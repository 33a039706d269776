"""Tests for the report of an event loop that stands still."""

import asyncio
import logging
import threading
import time
from pathlib import Path

import pytest

from tpuserve_server.observe.requests.loop_watch import LoopWatch, busy_s


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


class Measured:
    """Keeps the measurements of a loop."""

    def __init__(self) -> None:
        self.times: list[tuple[float, float | None]] = []
        self.has_two = threading.Event()

    def __call__(self, now_s: float, busy_s: float | None) -> None:
        self.times.append((now_s, busy_s))
        if len(self.times) > 1:
            self.has_two.set()


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture(autouse=True)
def log(lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger(LoopWatch.__module__)
    monkeypatch.setattr(logger, "handlers", [lines])
    monkeypatch.setattr(logger, "propagate", False)


async def test_loop_that_stands_still_is_logged_with_its_line_and_its_end(lines: Lines) -> None:
    watch = LoopWatch(Measured(), limit_s=0.05)
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
    watch = LoopWatch(Measured(), limit_s=0.05)
    watch.start()
    stand_still(lines.logged)
    # This loop still stands.
    watch.stop()
    assert len(lines.messages) == 1


async def test_a_loop_that_runs_is_not_logged_and_a_watch_without_a_start_stops(lines: Lines) -> None:
    LoopWatch(Measured()).stop()
    measured = Measured()
    watch = LoopWatch(measured, limit_s=60)
    watch.start()
    await asyncio.sleep(1.5)
    await asyncio.to_thread(watch.stop)
    assert lines.messages == []
    # At the start and each second.
    assert len(measured.times) >= 2


async def test_a_measurement_that_fails_is_logged_and_does_not_end_the_watch(lines: Lines) -> None:
    failures = Measured()

    def fail(now_s: float, busy_s: float | None) -> None:
        failures(now_s, busy_s)
        raise KeyError("m")

    watch = LoopWatch(fail)
    watch.start()
    await asyncio.to_thread(failures.has_two.wait, 15)
    await asyncio.to_thread(watch.stop)
    assert len(failures.times) >= 2
    assert lines.messages[:2] == ["Measuring the event loop failed"] * 2


async def test_a_loop_that_computes_is_busy() -> None:
    measured = Measured()
    watch = LoopWatch(measured)
    watch.start()
    # The watch measures on another thread, while this loop runs all the time.
    while not measured.has_two.is_set():
        time.process_time()
    await asyncio.to_thread(watch.stop)
    (began_s, idle_s), (ended_s, used_s) = measured.times[:2]
    assert idle_s is not None
    assert used_s is not None
    assert 0.0 < used_s - idle_s <= (ended_s - began_s) * 1.1


@pytest.mark.parametrize("text", [None, "1 2", "a b c"])
def test_without_the_figures_of_linux_the_busy_time_is_unknown(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "schedstat"
    if text is not None:
        file.write_text(text)
    assert busy_s(file) is None


def test_waits_for_a_cpu_are_busy(tmp_path: Path) -> None:
    file = tmp_path / "schedstat"
    file.write_text("1500000000 250000000 27\n")
    assert busy_s(file) == 1.75
