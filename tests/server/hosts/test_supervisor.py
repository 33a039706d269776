"""Tests for the supervisor: real signals to this process, reports to a service manager, and pauses before starts."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tpuserve_server.hosts.supervisor import HEALTHY_S, HostSignals, Respawns, report


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


@pytest.fixture
def manager() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.settimeout(5)
        yield receiver


@pytest.mark.parametrize("is_abstract", [False, True])
def test_state_reaches_the_service_manager(
    manager: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_abstract: bool
) -> None:
    path = str(tmp_path / "notify")
    manager.bind(f"\0{path}" if is_abstract else path)
    monkeypatch.setenv("NOTIFY_SOCKET", f"@{path}" if is_abstract else path)
    report("READY")
    assert manager.recv(100) == b"READY=1"


def test_absent_service_manager_is_only_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    report("STOPPING")
    assert "Cannot report STOPPING to the service manager" in caplog.text


def test_server_that_a_shell_started_reports_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    report("READY")
    assert caplog.text == ""


def test_first_new_start_follows_at_once_and_the_pause_grows_to_half_a_minute() -> None:
    respawns = Respawns()
    assert [respawns.pause_s(1.0) for _ in range(9)] == [0, 1, 2, 4, 8, 16, 30, 30, 30]


def test_long_life_forgets_earlier_ends() -> None:
    respawns = Respawns()
    assert [respawns.pause_s(lived_s) for lived_s in (1, 1, 1, HEALTHY_S, 1, 1)] == [0, 1, 2, 0, 1, 2]
