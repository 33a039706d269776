"""Compilers in separate processes, several at a time. If a process dies or hangs, the program's outcome is unknown."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from queue import SimpleQueue
from types import TracebackType
from typing import IO

from tpuserve_exporter.programs.compile_job import CompileJob, CompileOutcome

_MODULE = "tpuserve_exporter.programs.compiler"
# A large program takes a minute or two. A longer compilation counts as hanging.
TIMEOUT_S = 900.0
_MOST_PROCESSES = 8
# The longest wait for the exit of a process that closed its output.
_END_S = 5.0


class CompilerProcess:
    """A compiler process that starts with its first job and again after a failure. One thread uses it at a time."""

    def __init__(self, timeout_s: float = TIMEOUT_S, module: str = _MODULE) -> None:
        self._timeout_s = timeout_s
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()

    def compile(self, job: CompileJob) -> CompileOutcome:
        """Compile one program. Blocks until the process responds or ends, or until the timeout."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # died between jobs; handled below
            process.stdin.write(job.to_line().encode() + b"\n")
            process.stdin.flush()
        is_ready = _is_readable(process.stdout, self._timeout_s)
        line = process.stdout.readline() if is_ready else b""
        if line.endswith(b"\n"):
            return CompileOutcome.from_json(json.loads(line))
        if not is_ready:
            self._end()
            return CompileOutcome("unknown", f"the compiler did not respond within {self._timeout_s:g} s")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        status = self._end()
        return CompileOutcome("unknown", f"the compiler ended {_how(status)}{self._last_words()}")

    def kill(self) -> None:
        """Kill the process, so that `compile` returns. May be called from any thread."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End the process and delete its log. The caller must not be in `compile`."""
        self._end()
        self._log.close()

    def _start(self) -> "subprocess.Popen[bytes]":
        self._log.seek(0)
        self._log.truncate()
        # The worker imports from the same paths. It runs in a separate session, so Ctrl-C reaches only the exporter.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=environment, start_new_session=True,
        )  # fmt: skip
        return self._process

    def _end(self) -> int:
        """End the process and return its exit status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):
                assert pipe is not None
                pipe.close()
        return process.wait()

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = [line for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return f": {lines[-1].strip()}" if lines else ""


def _is_readable(pipe: IO[bytes], timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


class Compilers:
    """A pool of compiler processes: by default one for each processor, at most eight, and at most one for each job."""

    def __init__(self, most: int | None = None, start: Callable[[], CompilerProcess] = CompilerProcess) -> None:
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._most = most or min(processors, _MOST_PROCESSES)
        self._start = start
        self._idle: SimpleQueue[CompilerProcess] = SimpleQueue()
        self._all: list[CompilerProcess] = []
        self._pool = ThreadPoolExecutor(self._most, thread_name_prefix="tpu-compiler")

    def __enter__(self) -> "Compilers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._all:
            process.kill()
        self._pool.shutdown(cancel_futures=True)
        for process in self._all:
            process.close()

    def run(self, jobs: Sequence[CompileJob]) -> Iterator[tuple[int, CompileOutcome]]:
        """Yield each job's index and outcome as the jobs end."""
        while len(self._all) < min(self._most, len(jobs)):
            self._all.append(self._start())
            self._idle.put(self._all[-1])
        numbers = {self._pool.submit(self._compile, job): number for number, job in enumerate(jobs)}
        for done in as_completed(numbers):
            yield numbers[done], done.result()

    def _compile(self, job: CompileJob) -> CompileOutcome:
        process = self._idle.get()
        try:
            return process.compile(job)
        finally:
            self._idle.put(process)


def _how(returncode: int) -> str:
    return f"by {signal.Signals(-returncode).name}" if returncode < 0 else f"with status {returncode}"
