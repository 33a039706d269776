"""Tests of the relay of Envoy's stderr, with a real pipe and a real Envoy."""

import os
import re
import signal

import pytest

from tests.server.hosts.host_process import running
from tpuserve_server.hosts.envoy.stderr_relay import StderrRelay, relayed_stderr


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
    with pytest.raises(OSError, match="no Envoy"), relayed_stderr():
        raise OSError("no Envoy")
    assert set(os.listdir("/proc/self/fd")) <= before  # others may close theirs meanwhile


def test_the_crash_of_envoy_is_in_the_log() -> None:
    with running("envoy") as host:
        os.kill(host.serving_pid(), signal.SIGSEGV)
        host.wait_for("announce")
        host.terminate()
        assert host.exit_code() == 0
    crash = [line for line in host.errors if "CRITICAL envoy.backtrace: Caught Segmentation fault" in line]
    assert len(crash) == 1, host.errors
    assert all(re.match(r"\d{4}-\d\d-\d\d |    |tpuserve: ", line) for line in host.errors)
