"""Tests for the signal handlers of a host, with real signals to this process."""

import asyncio
import logging
import os
import signal
from collections.abc import Iterator

import pytest

from tpuserve_server.hosts.supervisor import HostSignals


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Restore this process's handlers."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


async def test_the_second_signal_to_stop_forces_the_end_and_no_reload_follows_the_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    forced: asyncio.Queue[int] = asyncio.Queue()
    reloads: asyncio.Queue[str] = asyncio.Queue()
    signals = HostSignals(force=forced.put_nowait, reload=lambda: reloads.put_nowait("reload"))
    async with asyncio.timeout(30):
        os.kill(os.getpid(), signal.SIGHUP)
        assert await reloads.get() == "reload"
        os.kill(os.getpid(), signal.SIGTERM)
        await signals.first()
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGINT)
        assert await forced.get() == 128 + signal.SIGINT
    assert reloads.empty()
    assert "Ignored SIGHUP: the server is shutting down" in caplog.text
