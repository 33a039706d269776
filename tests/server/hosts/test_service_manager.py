import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tpuserve_server.hosts.service_manager import report


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
