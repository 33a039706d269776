"""Tests that the host does not wait for a stop that hangs, and names the remaining threads."""

import asyncio
import logging
import threading
from dataclasses import dataclass

import pytest

from tpuserve_server.hosts import ending


@dataclass
class Stopping:
    """An application whose only tested method is `stop`."""

    fault: Exception | None = None
    lasts: bool = False

    async def stop(self) -> None:
        if self.fault is not None:
            raise self.fault
        if self.lasts:
            await asyncio.Event().wait()


async def test_a_stop_that_ends_is_waited_for() -> None:
    assert await ending.stop_in_time(Stopping())  # type: ignore[arg-type]  # all that is asked of it


async def test_what_a_stop_raises_is_raised() -> None:
    with pytest.raises(RuntimeError, match="stuck"):
        await ending.stop_in_time(Stopping(RuntimeError("stuck")))  # type: ignore[arg-type]  # as above


async def test_a_stop_without_end_is_given_up_and_what_runs_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ending, "STOP_TIMEOUT_S", 0.05)
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait, name="a-model-that-runs")
    thread.start()
    try:
        with caplog.at_level(logging.ERROR):
            assert not await ending.stop_in_time(Stopping(lasts=True))  # type: ignore[arg-type]  # as above
    finally:
        gate.set()
        thread.join()
    assert "a-model-that-runs" in caplog.text
