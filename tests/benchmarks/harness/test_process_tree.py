import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.harness.process_tree import ServerDied, started

# The parent handles SIGTERM by default, its child ignores it, and each prints a line when it is up.
STUBBORN = """
import signal, subprocess, sys
child = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
process = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, text=True)
process.stdout.readline()
open(sys.argv[1], "w").write(str(process.pid))
signal.pause()
"""


def wait_for_child(report: int) -> int:
    with os.fdopen(report) as pipe:  # blocks until the parent has written
        return int(pipe.read())


def test_the_whole_tree_is_gone_after_an_error_even_who_ignores_sigterm(tmp_path: Path) -> None:
    fifo = tmp_path / "child"
    os.mkfifo(fifo)
    seen = []

    def fail_in_the_middle() -> None:
        with started([sys.executable, "-c", STUBBORN, str(fifo)], tmp_path / "log") as tree:
            child = wait_for_child(os.open(fifo, os.O_RDONLY))
            seen.extend(tree.members)
            assert child in [member.pid for member in seen]
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fail_in_the_middle()
    assert len(seen) == 2
    assert not any(member.is_running() for member in seen)


def test_cpu_time_of_children_counts_alive_or_reaped(tmp_path: Path) -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}]); print('done', flush=True)"
    fifo = tmp_path / "log"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    with started(["sh", "-c", f'{sys.executable} -c "$0"; sleep 60', script], fifo) as tree:
        os.read(reader, 100)
        assert tree.cpu_seconds() >= 0.3
    os.close(reader)


def test_a_server_that_died_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with started(["sh", "-c", "echo port taken; exit 7"], tmp_path / "log") as tree:
        tree.process.wait()
        with pytest.raises(ServerDied, match=r"exited with code 7:\nport taken"):
            tree.check_alive()


def test_a_server_goes_with_a_benchmark_that_was_killed(tmp_path: Path) -> None:
    script = (
        "import pathlib, signal, sys\n"
        "from benchmarks.harness.process_tree import started\n"
        f"with started(['sleep', '600'], pathlib.Path({str(tmp_path / 'log')!r})) as tree:\n"
        "    print(tree.process.pid, flush=True)\n"
        "    signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as benchmark:
        assert benchmark.stdout is not None
        server = psutil.Process(int(benchmark.stdout.readline()))
        benchmark.kill()
        server.wait(timeout=60)
    assert not server.is_running()
