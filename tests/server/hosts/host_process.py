"""Runs a host with a test application as a child process, and reads its output."""

import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import psutil

ECHO = Path(__file__).with_name("echo_application.py")
# Long enough for a busy machine.
PATIENCE_S = 60.0


class HostProcess:
    """A running host. A thread reads its standard output, and its standard error is kept for messages."""

    # The program, run as `SCRIPT OPTIONS`.
    script: ClassVar[Path] = ECHO

    def __init__(self, options: dict[str, object], environment: dict[str, str] | None = None) -> None:
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.errors: list[str] = []
        self._has_errors = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, self.script, json.dumps(options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._readers = [threading.Thread(target=self._read_events), threading.Thread(target=self._read_errors)]
        for reader in self._readers:
            reader.start()

    @classmethod
    def started(cls, **options: object) -> Self:
        """Start on free ports and wait until they are open."""
        return cls.started_in(None, **options)

    @classmethod
    def started_in(cls, environment: dict[str, str] | None, **options: object) -> Self:
        """Start like `started`, with the given environment."""
        host = cls({"bind_address": "127.0.0.1", "grpc_port": 0, "rest_port": 0, **options}, environment)
        host.listening = host.wait_for("announce")
        return host

    listening: dict[str, Any]

    @property
    def grpc(self) -> str:
        address: str = self.listening["grpc"]
        return address

    @property
    def rest(self) -> str:
        return f"http://{self.listening['rest']}"

    def wait_for(self, event: str) -> dict[str, Any]:
        """Return the next event of this name, and skip other events before it."""
        while (said := self._events.get(timeout=PATIENCE_S)) is not None:
            if said["event"] == event:
                return said
        raise AssertionError(f"the host ended before it said {event!r}: {''.join(self.errors)}")

    def wait_for_error(self, text: str) -> str:
        """Return the first line of standard error that contains `text`."""
        with self._has_errors:
            assert self._has_errors.wait_for(lambda: any(text in line for line in self.errors), PATIENCE_S), self.errors
            return next(line for line in self.errors if text in line)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def exit_code(self) -> int:
        """Wait for the end and return the exit code."""
        code = self.process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        return code

    def serving_pid(self) -> int:
        """Return the process that runs the application."""
        pid: int = self.listening["pid"]
        return pid

    def close(self) -> None:
        """Kill all remaining processes."""
        family = [self.process.pid] if self.process.poll() is None else []
        serving = getattr(self, "listening", {}).get("pid")
        for pid in {*family, *([serving] if serving and psutil.pid_exists(serving) else [])}:
            psutil.Process(pid).kill()
        self.exit_code()

    def _read_events(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._events.put(json.loads(line))
        self._events.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                with self._has_errors:
                    self.errors.append(line)
                    self._has_errors.notify_all()


@contextmanager
def running(environment: dict[str, str] | None = None, **options: object) -> Iterator[HostProcess]:
    host = HostProcess.started_in(environment, **options)
    try:
        yield host
    finally:
        host.close()
