"""Records, inside a running server, the delays of its event loop and the batches that the loop runs itself.

Two files get three doubles for each event, in seconds: the time of the monotonic clock, how long it took, and the CPU
that its thread used for it. A third file has the most requests of
a batch that may run on the loop.
"""

import asyncio
import os
import struct
import threading
import time
from pathlib import Path
from typing import Final, TypeAlias

from tpuserve_server.core.batching import loop_runner
from tpuserve_server.core.batching.loop_runner import LoopRunner
from tpuserve_server.core.batching.task import Task
from tpuserve_server.hosts import supervisor
from tpuserve_server.startup.command import main as serve
from tpuserve_server.startup.serve import main as serve_models
from tpuserve_server.startup.settings import SETTINGS_VARIABLE

# Environment variable with the folder of the three files.
FOLDER: Final = "LOOP_PROBE_FOLDER"
DELAYS, RUNS, MOST_REQUESTS = "delays", "runs", "most_requests"
_PERIOD_S: Final = 0.002
# Signs of life between two writes.
_SIGNS: Final = 50
_RECORD: Final = struct.Struct("=ddd")

Record: TypeAlias = tuple[float, float, float]


class LoopProbe:
    """A thread that asks the event loop for a sign of life every 2 ms, and records how long each takes.

    The loop's thread appends to the lists, and the probe's thread empties them.
    """

    def __init__(self, folder: Path) -> None:
        """Write to the files in `folder`."""
        self._folder = folder
        self._delays: list[Record] = []
        self._runs: list[Record] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def install(self) -> None:
        """Begin with the first batch, on its event loop."""
        wake, run_on_loop = LoopRunner._wake, LoopRunner._run_here

        def watched_wake(runner: LoopRunner, loop: asyncio.AbstractEventLoop) -> None:
            if self._loop is None:
                self._loop = loop
                threading.Thread(target=self._ask, args=[loop], name="loop-probe", daemon=True).start()
            wake(runner, loop)

        def timed_run(runner: LoopRunner, tasks: list[Task], loop: asyncio.AbstractEventLoop) -> None:
            started_s, cpu_s = time.monotonic(), time.thread_time()
            run_on_loop(runner, tasks, loop)
            self._runs.append((started_s, time.monotonic() - started_s, time.thread_time() - cpu_s))

        # The server has no hook for this, and needs none.
        setattr(LoopRunner, "_wake", watched_wake)  # noqa: B010 - mypy rejects the assignment of a method
        setattr(LoopRunner, "_run_here", timed_run)  # noqa: B010

    def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            most = int((self._folder / MOST_REQUESTS).read_text())
            loop_runner.MOST_REQUESTS = most  # type: ignore[misc]  # the server has no option for it
            for _ in range(_SIGNS):
                time.sleep(_PERIOD_S)
                loop.call_soon_threadsafe(self._answer, time.monotonic())
            self._delays = _write(self._folder / DELAYS, self._delays)
            self._runs = _write(self._folder / RUNS, self._runs)

    def _answer(self, asked_s: float) -> None:
        self._delays.append((asked_s, time.monotonic() - asked_s, 0.0))


def _write(path: Path, records: list[Record]) -> list[Record]:
    """Append the records that are there now, and return the list without them."""
    written = len(records)
    with path.open("ab") as file:
        file.write(b"".join(_RECORD.pack(*record) for record in records[:written]))
    del records[:written]
    return records


def read_records(path: Path) -> list[Record]:
    """Return the records of a file, oldest first, or none if it does not exist."""
    return list(_RECORD.iter_unpack(path.read_bytes())) if path.exists() else []


def main() -> None:
    """Run `tpuserve serve` until SIGTERM. The arguments are its flags.

    The supervisor runs this program, too, as the process of the models, with the probe.
    """
    if SETTINGS_VARIABLE in os.environ:
        LoopProbe(Path(os.environ[FOLDER])).install()
        serve_models()
        return
    run = supervisor.run
    supervisor.run = lambda _, *arguments: run("benchmarks.overhead.loop_probe", *arguments)
    serve()


if __name__ == "__main__":
    main()
