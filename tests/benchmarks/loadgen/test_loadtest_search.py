"""Tests that the load test of a benchmark ends with the benchmark, however the benchmark ends."""

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import psutil
import pytest

from benchmarks.loadgen.loadtest_search import Running

ROOT = Path(__file__).parents[3]
LONG = [sys.executable, "-c", "import time; time.sleep(600)"]


def run_long(running: Running, begun: Event) -> int:
    with subprocess.Popen(LONG, text=True) as process, running.counted(process):
        begun.set()
        return process.wait()


def runs(process: psutil.Process) -> bool:
    """Return whether the process runs. A zombie, which an orphan remains until process 1 reaps it, does not."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_processes_of_other_threads_are_ended_and_so_are_those_that_start_later() -> None:
    running, begun, later = Running(), Event(), Event()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(run_long, running, begun)
        assert begun.wait(20)
        running.end()
        second = pool.submit(run_long, running, later)
        assert [first.result(20), second.result(20)] == [-signal.SIGTERM] * 2


def test_a_process_is_ended_by_an_error_beside_it() -> None:
    with (
        pytest.raises(ZeroDivisionError),
        subprocess.Popen(LONG, text=True) as process,
        Running().counted(process),
    ):
        raise ZeroDivisionError
    assert process.returncode == -signal.SIGTERM


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # it has ended, or is a zombie
        return ""


def test_sigterm_ends_a_benchmarks_load_test_too() -> None:
    # The first of two runs lasts ten seconds. SIGTERM ends it early.
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks", "loadtest", "stall"], stdout=subprocess.DEVNULL, cwd=ROOT
    ) as process:
        children: list[psutil.Process] = []
        while not any("tpuserve-loadtest" in command_of(child) for child in children):
            assert process.poll() is None
            time.sleep(0.05)
            children = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    psutil.wait_procs(children, timeout=60)
    assert children
    assert not [child for child in children if runs(child)]
