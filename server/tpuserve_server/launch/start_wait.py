"""Wait for a server's start. Its reports arrive through a named pipe, which ends when the server does."""

import os
import selectors
import time
from pathlib import Path

from tpuserve_server.command.start_report import StartReport
from tpuserve_server.hosts.application import Listening
from tpuserve_server.launch.errors import StartFailed
from tpuserve_server.launch.server_process import ServerProcess
from tpuserve_server.launch.start_progress import Show

# Timeout for the process to exit after its pipe has ended.
_END_TIMEOUT_S = 10.0
_USAGE = 2


class StartPipe:
    """Named pipe, opened for reading, and for writing by the server that inherits `writer`."""

    def __init__(self, path: Path) -> None:
        """Create the pipe. Raises OSError."""
        os.mkfifo(path, 0o600)
        self.path = path
        self._reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.writer = os.open(path, os.O_WRONLY)
        self._rest = b""

    def close_writer(self) -> None:
        """Close this process's writer once the server has inherited it. The pipe then ends when the server does."""
        os.close(self.writer)

    def close(self) -> None:
        """Close the reader's end. The server's next report fails and is its last. Does nothing the second time."""
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1

    def read(self, timeout_s: float) -> list[StartReport] | None:
        """Block until reports arrive and return them: none after `timeout_s` seconds, None at the end of the pipe."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._reader, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                return []
        data = os.read(self._reader, 1 << 16)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [StartReport.from_json(line.decode()) for line in lines]


def wait_until_ready(pipe: StartPipe, process: ServerProcess, log: Path, timeout_s: float, show: Show) -> Listening:
    """Block until every model is available, and return the addresses.

    Raises:
        StartFailed: the server is not ready. The message has the server's own reason if it reported one.
        ValueError: the server refused a setting.
    """
    deadline_s = time.monotonic() + timeout_s
    waiting = "it is not listening yet"
    while (remaining_s := deadline_s - time.monotonic()) > 0:
        reports = pipe.read(remaining_s)
        if reports is None:
            raise _ended(process, log)
        for report in reports:
            if report.settled and report.failures:
                raise StartFailed(f"Cannot serve {'; '.join(report.failures)}", _read(log))
            if report.settled:
                return report.listening
            waiting = "; ".join([report.waiting, *report.failures])
            show(f"the server is listening; {waiting}")
    raise StartFailed(
        f"The server was not ready after {timeout_s:g} s: {waiting}. Allow more time with timeout_s. Its last log "
        f"line: {_last_line(log)}",
        _read(log),
    )


def _ended(process: ServerProcess, log: Path) -> Exception:
    status = process.wait(_END_TIMEOUT_S)
    last = _last_line(log)
    # Click and the hosts start an error message with these prefixes.
    reason = last.removeprefix("Error: ").removeprefix("tpuserve: ")
    if status == _USAGE:
        return ValueError(reason)
    if reason != last:
        return StartFailed(reason, _read(log))
    how = f"by signal {-status}" if status < 0 else f"with status {status}"
    return StartFailed(f"The server ended {how} before it was ready. Its last log line: {last}", _read(log))


def _read(log: Path) -> str:
    return log.read_text(errors="replace")


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in _read(log).splitlines() if line.strip()]
    return lines[-1] if lines else "none"
