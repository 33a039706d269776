"""Tests of the relay of stderr, with a real pipe and a real process."""

import logging
import os
import re
import signal
from collections.abc import Iterator

import pytest

from tests.server.hosts.host_process import running
from tpuserve_server.hosts.child import StderrRelay, log_line, relayed_stderr

GONE = "request failed: connection writer was closed"
CLOSED = "request failed: stream channel was closed"
UNANSWERED = "request failed: ASGI app returned before starting the response"


async def relayed(*chunks: bytes) -> None:
    with relayed_stderr() as stderr:
        relay = await StderrRelay.over(stderr.ours)
        for chunk in chunks:
            os.write(stderr.theirs, chunk)
    await relay.finish()


async def test_every_line_is_an_event_also_one_without_an_end(caplog: pytest.LogCaptureFixture) -> None:
    await relayed(b"one\ntw", b"o\r\n\xff\n\n", b"end")
    assert caplog.messages == ["one", "two", "\N{REPLACEMENT CHARACTER}", "end"]


async def test_a_line_without_end_is_split(caplog: pytest.LogCaptureFixture) -> None:
    await relayed(*[b"x" * 4096] * 12)
    assert len(caplog.messages) == 3
    assert "".join(caplog.messages) == "x" * 4096 * 12


async def test_a_process_that_keeps_the_pipe_open_delays_nothing() -> None:
    with relayed_stderr() as stderr:
        relay = await StderrRelay.over(stderr.ours)
        await relay.finish()


def test_a_failed_start_leaves_no_descriptor_open() -> None:
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="no process"), relayed_stderr():
        raise OSError("no process")
    assert set(os.listdir("/proc/self/fd")) <= before  # others may close theirs meanwhile


def test_the_crash_of_the_process_is_in_the_log() -> None:
    with running() as host:
        os.kill(host.serving_pid(), signal.SIGSEGV)
        host.wait_for("announce")
        host.terminate()
        assert host.exit_code() == 0
    assert any("ended by itself (signal SIGSEGV)" in line for line in host.errors)
    assert all(re.match(r"\d{4}-\d\d-\d\d |    |tpuserve: ", line) for line in host.errors)


@pytest.mark.parametrize(
    ("line", "record"),
    [
        ("E0000 00:00:17.5 12 a.cc:1] 100% bad", ("stderr", logging.ERROR, "E0000 00:00:17.5 12 a.cc:1] 100% bad")),
        ("I1126 08:15:01.25 12 a.cc:1] fine", ("stderr", logging.INFO, "I1126 08:15:01.25 12 a.cc:1] fine")),
        (f"x {GONE}", ("stderr", logging.DEBUG, f"x {GONE}")),
        (f"x {CLOSED}", ("stderr", logging.DEBUG, f"x {CLOSED}")),
        (f"x {UNANSWERED}", ("stderr", logging.DEBUG, f"x {UNANSWERED}")),
        ("free(): invalid pointer %s", ("stderr", logging.WARNING, "free(): invalid pointer %s")),
    ],
)
def test_a_line_is_an_event(line: str, record: tuple[str, int, str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        log_line(line)
    assert caplog.record_tuples == [record]


@pytest.fixture
def _only_critical() -> Iterator[None]:
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.CRITICAL)
    yield
    root.setLevel(before)


@pytest.mark.usefixtures("_only_critical")
def test_no_level_suppresses_a_line_of_unknown_origin(caplog: pytest.LogCaptureFixture) -> None:
    for line in ("W1126 08:15:01.25 x", "", "terminate called"):
        log_line(line)
    assert caplog.messages == ["terminate called"]
