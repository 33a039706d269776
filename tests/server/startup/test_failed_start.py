"""Tests for the end of a failed start, without a server."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import tpuserve_server
from tpuserve_server import StartFailed
from tpuserve_server.startup import start
from tpuserve_server.startup.start_report import START_REPORT_VARIABLE


class SilentProcess:
    """A server that reports nothing. It stops when the reader closes the pipe, which reports might otherwise fill."""

    stopped = False

    def __init__(
        self, flags: Sequence[str], log: Path, environment: Mapping[str, str], inherited: Sequence[int]
    ) -> None:
        self._pipe = environment[START_REPORT_VARIABLE]
        self._writer = os.dup(inherited[0])

    def stop(self, timeout_s: float) -> int:
        os.close(self._writer)
        with pytest.raises(OSError, match="No such device or address"):
            os.open(self._pipe, os.O_WRONLY | os.O_NONBLOCK)
        SilentProcess.stopped = True
        return 0


def test_nothing_reads_reports_of_a_server_that_is_being_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "ServerProcess", SilentProcess)
    with pytest.raises(StartFailed, match=r"not ready after 0\.01 s: it is not listening yet"):
        tpuserve_server.start(model_config_file=tmp_path / "models.config", timeout_s=0.01, progress=False)
    assert SilentProcess.stopped
