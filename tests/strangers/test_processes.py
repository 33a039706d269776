"""Child processes and their descendants are stopped at their time limit and with the run."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.strangers.processes import Processes, Stopped, last_line


def test_a_hanging_process_is_killed_and_its_log_reports_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    status = Processes(limit_s=0.2).run(command, tmp_path / "out", tmp_path / "err", {})
    assert status == -9
    assert last_line(tmp_path / "err") == "stopped at its time limit of 0.2 s"


def test_stopping_kills_what_a_process_started(tmp_path: Path) -> None:
    processes, fifo = Processes(), tmp_path / "fifo"
    os.mkfifo(fifo)
    child = f"import os, signal; os.write(os.open({str(fifo)!r}, os.O_WRONLY), b'x'); signal.pause()"
    command = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"]
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(processes.run, command, tmp_path / "out", tmp_path / "err", {})
        with fifo.open("rb", buffering=0) as reader:
            assert reader.read(1) == b"x"  # the child of the process runs
            processes.stop()
            assert running.result() == -9
            assert reader.read(1) == b""  # the child has ended and closed its end
    with pytest.raises(Stopped):
        processes.run(command, tmp_path / "out", tmp_path / "err", {})
