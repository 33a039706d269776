"""Compare `tpuserve loadtest search` with the true rate: the digits model, served on a device of known speed.

The server's own batcher gives the true rate in virtual time, with the same sizes and the same device. It excludes
network and processes, which take one or two milliseconds. The device is so slow that they do not matter.
"""

import json
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any, TypeAlias

from benchmarks.batching.simulated_grid import greedy_setting
from benchmarks.batching.simulation import Device, poisson, simulate
from benchmarks.harness.process_tree import ServerDied
from benchmarks.harness.targets import ROOT, model_server

Progress: TypeAlias = Callable[[str], None]

MODEL = "digits"
# A batch of 32 takes 152 ms. The objective is 360 ms for 99 % of requests.
DEVICE = Device(MODEL, t0_s=0.120, per_row_s=0.001, max_rows=32, latency_s=0.360, max_in_flight=2)
# By default, the search begins at half of one user's rate, which takes minutes longer.
FIRST_PER_S = 64
_ARRIVALS = 100_000
_SEEDS = 4
_PRECISION = 0.002
_SAVE = "import sys; from examples.digits.model import build; build('float32').save(sys.argv[1])"


@dataclass(frozen=True, slots=True)
class Found:
    """Result of one search. `rate_per_s` is None if it found none; `problem` gives the reason.

    `first` describes the first try, at a third of the true rate. No request is late there in virtual time, so the
    machine causes any late request.
    """

    seed: int
    rate_per_s: float | None
    tries: int
    problem: str
    first: str

    def error(self, truth_per_s: float) -> float:
        """Return the relative error, or -1 if no rate was found."""
        return (self.rate_per_s or 0.0) / truth_per_s - 1


def true_rate() -> float:
    """Return the highest rate at which 99 % of requests are in time."""
    setting = greedy_setting(DEVICE)
    high = DEVICE.max_rows / DEVICE.cost_s(DEVICE.max_rows)
    low = 0.5 * high
    while high > low * (1 + _PRECISION):
        rate = (low + high) / 2
        runs = [simulate(DEVICE, setting, poisson(rate, _ARRIVALS, seed)) for seed in range(_SEEDS)]
        in_time, offered = sum(run.in_time for run in runs), sum(run.offered for run in runs)
        low, high = (rate, high) if in_time >= 0.99 * offered else (low, rate)
    return low


def write_digits(scratch: Path) -> Path:
    """Export the example's model with random weights, since its outputs do not matter. Return its base path."""
    sizes = ",".join(map(str, DEVICE.sizes))
    source, base = scratch / "digits.keras", scratch / "models" / MODEL
    _run([sys.executable, "-c", _SAVE, str(source)])
    _run([str(Path(sys.executable).with_name("tpuserve-export")), str(source), str(base), "--batch-sizes", sizes])
    return base


def searches(
    base: Path, scratch: Path, seeds: int, concurrency: int, duration: str, progress: Progress
) -> Generator[Found, None, None]:
    """Run `concurrency` searches at once, each on its own server, and yield results as they finish.

    Threads pass lines to `progress`. Closing the generator stops the running searches.
    """
    running = Running()
    with ExitStack() as stack, ThreadPoolExecutor(concurrency) as pool:
        # Start all servers before the first search: a starting server takes seconds of CPU time from the measured ones.
        ports: Queue[int] = Queue()
        for index in range(min(concurrency, seeds)):
            ports.put(stack.enter_context(_serve(base, scratch / str(index))))
        begun = [pool.submit(_search, ports, seed, duration, progress, running) for seed in range(seeds)]
        try:
            for done in as_completed(begun):
                yield done.result()
        finally:
            # After a failure or a signal, cancel the pending searches, then stop the running ones.
            pool.shutdown(wait=False, cancel_futures=True)
            running.end()


class Running:
    """Processes that threads have started, and that another thread can stop. All methods are thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[str]] = set()
        self._ended = False

    @contextmanager
    def counted(self, process: "subprocess.Popen[str]") -> Iterator[None]:
        """Register the process with `end` for the duration of the block. An exception in the block stops it, too."""
        with self._lock:
            self._processes.add(process)
            if self._ended:
                process.terminate()
        try:
            yield
        except BaseException:  # SystemExit too, because leaving the block waits for the process
            process.terminate()
            raise
        finally:
            with self._lock:
                self._processes.discard(process)

    def end(self) -> None:
        """Stop all registered processes and those registered later. Does not wait."""
        with self._lock:
            self._ended = True
            for process in self._processes:
                process.terminate()


@contextmanager
def _serve(base: Path, scratch: Path) -> Iterator[int]:
    """Start a server with the scripted device, and return its gRPC port."""
    scratch.mkdir()
    times = (f"{1000 * DEVICE.t0_s:g}", f"{1000 * DEVICE.per_row_s:g}")
    program = [sys.executable, str(Path(__file__).with_name("scripted_server.py")), *times]
    with model_server(base, scratch, name=MODEL, program=program) as server:
        yield server["grpc"].port


def _run(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServerDied(f"{command[0]} failed:\n{(done.stdout + done.stderr)[-1500:]}")


def _search(ports: "Queue[int]", seed: int, duration: str, progress: Progress, running: Running) -> Found:
    port = ports.get()
    try:
        report = loadtest(
            "search",
            MODEL,
            *("--grpc", f"127.0.0.1:{port}"),
            *("--slo", f"p99<={1000 * DEVICE.latency_s:g}ms", "--from", str(FIRST_PER_S)),
            *("--duration", duration, "--warm-up", "5s", "--seed", str(seed)),
            progress=lambda line: progress(f"seed {seed}: {line}"),
            running=running,
        )
    finally:
        ports.put(port)
    probes = report["probes"]
    first = probes[0]["reason"] if probes else ""
    return Found(seed, report["rate_per_s"], len(probes), report["problem"], first)


def loadtest(
    *arguments: str, progress: Progress = lambda line: None, running: Running | None = None
) -> dict[str, Any]:  # a JSON document
    """Run `tpuserve loadtest` and return its report. A late generator is only a note, because it shares the machine.

    `progress` receives each line of its output. The owner of `running` can stop it.
    """
    program = str(Path(sys.executable).with_name("tpuserve-loadtest"))
    command = [program, *arguments, "--generator-limit", "note", "--json"]
    lines: deque[str] = deque(maxlen=20)
    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, text=True) as process,
        (running or Running()).counted(process),
    ):
        assert process.stderr is not None  # a pipe
        for line in process.stderr:
            lines.append(line)
            progress(line.strip())
        output.seek(0)
        text = output.read()
    try:
        document: dict[str, Any] = json.loads(text)
    except ValueError:
        raise ServerDied(
            f"tpuserve loadtest {arguments[0]} printed no report. Its last lines:\n{''.join(lines)}"
        ) from None
    return document
