"""Many models that do nothing: what they cost in threads, memory and wake-ups of the process."""

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.e2e.running_server import RunningServer, run_configured_server
from tests.support.saved_models import save_mlp, write_manifest
from tpuserve_client import Client

FEW, MANY = 10, 110
# Clients at a time.
CLIENTS = 32
# Time in which the wake-ups of idle threads are counted.
WINDOW_S = 10.0


@dataclass(frozen=True)
class Cost:
    """Costs of a server: threads, anonymous memory in MB of 10^6 bytes, and wake-ups in the window.

    `busy_threads` counts the threads after requests to all models at a time.
    """

    threads: int
    memory_mb: float
    wake_ups: int
    busy_threads: int


def measure(template: Path, folder: Path, count: int) -> Cost:
    folder.mkdir()
    names = [f"m{number}" for number in range(count)]
    for name in names:
        shutil.copytree(template, folder / name / "1", copy_function=os.link)
    config = folder / "models.config"
    configs = "\n".join(
        f"config {{ name: '{name}' base_path: '{folder / name}' model_platform: 'tensorflow' }}" for name in names
    )
    config.write_text(f"model_config_list {{ {configs} }}")
    flags = (f"--model_config_file={config}", "--file_system_poll_wait_seconds=1")
    with run_configured_server(folder / "log", *flags, model=names[-1]) as server:
        wait_for_all(server, names)
        process = serving_process(server)
        threads, memory_mb = process.num_threads(), anonymous_mb(process)
        before = wake_ups(process)
        time.sleep(WINDOW_S)
        counted = wake_ups(process) - before
        with Client(server.grpc) as client, ThreadPoolExecutor(CLIENTS) as clients:
            x = np.zeros((1, 64), np.float32)
            answers = list(clients.map(lambda name: client.predict(name, {"x": x}), names))
        assert [answer["y"].shape for answer in answers] == [(1, 10)] * count
        return Cost(threads, memory_mb, counted, process.num_threads())


def wait_for_all(server: RunningServer, names: list[str]) -> None:
    with Client(server.grpc) as client:
        for name in names:
            client.wait_until_ready(300.0, name)


def serving_process(server: RunningServer) -> psutil.Process:
    """Return the process that serves, and not its supervisor."""
    process = psutil.Process(server.process.pid)
    return max([process, *process.children(recursive=True)], key=lambda one: one.memory_info().rss)


def anonymous_mb(process: psutil.Process) -> float:
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("Anonymous:"))


def wake_ups(process: psutil.Process) -> int:
    return sum(_switches(Path(f"/proc/{process.pid}/task/{thread.id}/status")) for thread in process.threads())


def _switches(status: Path) -> int:
    return next(
        int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("voluntary_ctxt_switches")
    )


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux")
def test_idle_models_cost_little_memory_and_no_threads_or_wake_ups(tmp_path: Path) -> None:
    template = save_mlp(tmp_path / "template" / "1")
    write_manifest(template)
    few, many = (measure(template, tmp_path / str(count), count) for count in (FEW, MANY))
    assert many.threads - few.threads <= 2
    assert (many.memory_mb - few.memory_mb) / (MANY - FEW) <= 1.5
    # Each model would add at least one wake-up.
    assert many.wake_ups - few.wake_ups < (MANY - FEW) / 2
    # All models had requests: at most 4 threads for each core run them, or 32.
    assert many.busy_threads - many.threads <= max(32, 4 * (os.cpu_count() or 1))
