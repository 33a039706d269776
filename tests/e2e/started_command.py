"""A command in a separate process, whose output tests wait for. It need not become ready."""

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence

from tests.e2e.running_server import START_TIMEOUT_S, STOP_TIMEOUT_S


class StartedCommand:
    """A started command whose output lines tests can wait for."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait_for(self, text: str) -> str:
        """Wait for the first line that contains `text`, and return it."""
        with self._changed:
            assert self._changed.wait_for(lambda: any(text in line for line in self.lines), START_TIMEOUT_S), self.lines
            return next(line for line in self.lines if text in line)

    def stop(self) -> int:
        """Send SIGTERM, wait for the end and return the exit status."""
        self.process.terminate()
        code = self.process.wait(STOP_TIMEOUT_S)
        self._reader.join(STOP_TIMEOUT_S)
        return code

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with self._changed:
                    self.lines.append(line.rstrip())
                    self._changed.notify_all()


@contextlib.contextmanager
def start_command(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[StartedCommand]:
    """Start a command with more environment variables, and kill it at exit if it still runs."""
    process = subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    running = StartedCommand(process)
    try:
        yield running
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
