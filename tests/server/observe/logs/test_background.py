"""Tests of the log's thread, with a real pipe."""

import fcntl
import json
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.support.descriptors import is_readable, low_descriptors_taken
from tests.support.fakes import FakeClock
from tpuserve_server.observe.logs.background import BackgroundHandler
from tpuserve_server.observe.logs.configuration import line_formatter

PATIENCE_S = 30.0


@dataclass
class Pipe:
    """A pipe with room for one page, whose lines a test reads when it wants."""

    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.reader, self.writer = os.pipe()
        fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, 4096)
        self.handler = BackgroundHandler(self.writer, logging.Formatter("%(message)s"), self.clock.monotonic_s)
        self._rest = b""

    def log(self, message: str, *arguments: object, level: int = logging.INFO) -> None:
        self.handler.handle(logging.LogRecord("x", level, "x.py", 1, message, arguments, None))

    def line(self) -> str:
        """Wait for the next line."""
        while b"\n" not in self._rest:
            assert is_readable(self.reader, PATIENCE_S), "no further line came"
            self._rest += os.read(self.reader, 4096)
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def lines_of(self, events: int) -> tuple[list[str], int]:
        """Wait until every one of `events` is written or reported as dropped. Return the lines and the drops."""
        lines: list[str] = []
        dropped = 0
        while len(lines) + dropped < events:
            line = self.line()
            if line.startswith("Dropped "):
                dropped += int(line.split()[1])
            else:
                lines.append(line)
        return lines, dropped

    def close(self) -> None:
        os.close(self.reader)  # All writes fail from now on, so that the thread soon waits for other events.
        self.handler.flush()
        os.close(self.writer)


class Textless:
    """An object without a text, such as one that is half destroyed."""

    def __repr__(self) -> str:
        raise ValueError("no text")


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


def test_lines_arrive_in_order(pipe: Pipe) -> None:
    for number in range(5):
        pipe.log(f"line {number} %s", "x")
    assert [pipe.line() for _ in range(5)] == [f"line {number} x" for number in range(5)]


def test_a_reader_that_never_reads_delays_no_event_and_learns_the_number_of_lost_ones(pipe: Pipe) -> None:
    for number in range(20_000):
        pipe.log(f"{number:06} {'x' * 100}")
    lines, dropped = pipe.lines_of(20_000)
    assert dropped == pipe.handler.dropped > 10_000
    assert dropped + len(lines) == 20_000
    assert lines == sorted(lines)


def test_lines_of_requests_leave_room_for_other_events(pipe: Pipe) -> None:
    for _ in range(10_000):
        pipe.handler.handle(logging.LogRecord("tpuserve.access", logging.INFO, "x.py", 1, "Predict OK", None, None))
    dropped = pipe.handler.dropped
    assert dropped > 0
    pipe.log("important")
    assert pipe.handler.dropped == dropped
    lines, reported = pipe.lines_of(10_001)
    assert (lines[-1], len(lines), reported) == ("important", 10_001 - dropped, dropped)


def test_flush_waits_for_the_reader_only_so_long(pipe: Pipe) -> None:
    for number in range(1000):
        pipe.log(f"{number} {'x' * 100}")
    pipe.handler.flush()
    assert pipe.line().startswith("0 ")


def test_a_slow_reader_of_a_pipe_that_does_not_block_gets_every_line(pipe: Pipe) -> None:
    os.set_blocking(pipe.writer, False)
    for number in range(500):
        pipe.log(f"{number} {'x' * 100}")
    assert [int(pipe.line().split()[0]) for _ in range(500)] == list(range(500))


def test_the_log_waits_for_a_descriptor_above_those_of_select() -> None:
    with low_descriptors_taken():
        pipe = Pipe()
        os.set_blocking(pipe.writer, False)
        for number in range(500):
            pipe.log(f"{number} {'x' * 100}")
        assert [int(pipe.line().split()[0]) for _ in range(500)] == list(range(500))
        pipe.close()


def test_repeats_are_summarized_when_their_period_ends(pipe: Pipe) -> None:
    for number in range(30):
        pipe.log("again %d", number)
    pipe.log("other")
    lines = [pipe.line() for _ in range(11)]
    assert lines == [*(f"again {number}" for number in range(10)), "other"]
    pipe.clock.now_s += 61.0
    pipe.log("next")
    assert [pipe.line(), pipe.line()] == ['"again %d" repeated 20 more times in 60 s', "next"]


def test_the_summary_of_a_quiet_process_comes_without_another_event(pipe: Pipe) -> None:
    now_s = iter([0.0] * 11)
    # The period ends at the first look after the event that is suppressed.
    handler = BackgroundHandler(pipe.writer, logging.Formatter("%(message)s"), lambda: next(now_s, 100.0))
    for number in range(11):
        handler.handle(logging.LogRecord("x", logging.INFO, "x.py", 1, "again %d", (number,), None))
    assert [pipe.line() for _ in range(11)][-1] == '"again %d" repeated 1 more time in 60 s'


def test_close_writes_the_summaries(pipe: Pipe) -> None:
    for number in range(12):
        pipe.log("again %d", number)
    pipe.handler.close()
    assert [pipe.line() for _ in range(11)][-1] == '"again %d" repeated 2 more times in 60 s'


def test_lines_of_the_access_log_are_no_repeats(pipe: Pipe) -> None:
    for _ in range(30):
        pipe.handler.handle(logging.LogRecord("tpuserve.access", logging.INFO, "x.py", 1, "Predict OK", None, None))
    assert [pipe.line() for _ in range(30)] == ["Predict OK"] * 30


def test_a_large_message_is_cut(pipe: Pipe) -> None:
    pipe.log("%s", "x" * 1_000_000)
    line = pipe.line()
    assert len(line) < 10_000
    assert line.endswith("x…")


def test_arguments_that_do_not_fit_and_fields_that_fail_lose_no_event(pipe: Pipe) -> None:
    pipe.log("%d of %d", "a")
    assert pipe.line() == "%d of %d ('a',)"
    pipe.handler.setFormatter(line_formatter("json"))
    record = logging.LogRecord("x", logging.INFO, "x.py", 1, "here", None, None)
    record.__dict__["fields"] = lambda: 1 // 0
    pipe.handler.handle(record)
    assert json.loads(pipe.line())["message"] == "Cannot render an event of 'x': ZeroDivisionError"


def test_the_log_keeps_no_frame_of_an_error(pipe: Pipe) -> None:
    try:
        raise ZeroDivisionError("none")
    except ZeroDivisionError as error:
        record = logging.LogRecord("x", logging.ERROR, "x.py", 1, "failed", None, (type(error), error, None))
    pipe.handler.setFormatter(logging.Formatter("%(message)s %(exc_info)s %(traceback)s"))
    pipe.handler.handle(record)
    assert pipe.line() == "failed None ZeroDivisionError: none"


def test_many_threads_log_at_once(pipe: Pipe) -> None:
    def log() -> None:
        for number in range(100):
            pipe.log(f"{number}")

    threads = [threading.Thread(target=log) for _ in range(8)]
    for thread in threads:
        thread.start()
    lines = sorted(int(pipe.line()) for _ in range(800))
    for thread in threads:
        thread.join(PATIENCE_S)
    assert lines == sorted(list(range(100)) * 8)


def test_arguments_without_a_text_raise_nothing(pipe: Pipe) -> None:
    pipe.log("Exception ignored in: %r", Textless())
    pipe.log("after")
    assert pipe.line() == "Exception ignored in: %r (its arguments have no text: ValueError)"
    assert pipe.line() == "after"


def test_a_message_without_a_text_raises_nothing(pipe: Pipe) -> None:
    pipe.handler.handle(logging.LogRecord("x", logging.INFO, "x.py", 1, Textless(), None, None))
    pipe.log("after")
    assert pipe.line() == "Cannot render an event of 'x': ValueError"
    assert pipe.line() == "after"
