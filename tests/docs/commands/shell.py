"""A shell and a Python interpreter that keep their state over the blocks of a page."""

import contextlib
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

_MARK = "@@end of the command@@"


class CommandFailed(Exception):
    """A command ended with an unexpected code, did not end, or did not print what the page shows."""


class Session:
    """A process that runs pieces of code in turn and returns what each prints.

    The process reads the paths of files with code from its standard input. After each it prints a mark and the exit
    code. One thread uses a session at a time.
    """

    def __init__(self, program: Sequence[str | Path], directory: Path, code: Path, suffix: str) -> None:
        """Start the process in `directory`. Files with the pieces are in the directory `code`, with this suffix."""
        self._code = code
        self._suffix = suffix
        self._pieces = 0
        self._process = subprocess.Popen(
            program,
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def run(self, code: str, limit_s: float) -> tuple[int, str]:
        """Run code and return its exit code and output. Raises CommandFailed if it takes longer than `limit_s`.

        The limit is for the time without output.
        """
        self._pieces += 1
        file = self._code / f"{self._pieces}{self._suffix}"
        file.write_text(code, encoding="utf-8")
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the reader finds the end
            self._process.stdin.write(f"{file}\n")
            self._process.stdin.flush()
        printed: list[str] = []
        while True:
            try:
                line = self._lines.get(timeout=limit_s)
            except queue.Empty:
                raise CommandFailed(f"no end after {limit_s:.0f} s. Printed:\n{''.join(printed)}") from None
            if line is None:
                raise CommandFailed(f"the session ended. Printed:\n{''.join(printed)}")
            before, mark, status = line.partition(_MARK)
            printed.append(before)
            if mark:
                return int(status), "".join(printed)

    def close(self) -> None:
        """Kill the process and the commands that it still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)


def open_shell(directory: Path, code: Path) -> Session:
    """Start bash. Variables, activated environments and the working directory stay from one piece to the next."""
    # At the end of the input, which is also that of a killed caller, nothing keeps running.
    loop = f'while read -r file; do . "$file" </dev/null; echo "{_MARK}$?"; done; kill 0'
    return Session(["bash", "-c", loop], directory, code, ".sh")


def open_python(directory: Path, code: Path) -> Session:
    """Start the `python` of PATH. All pieces run in one module, and may await at its top level."""
    return Session(["python", "-u", Path(__file__).with_name("interpreter.py"), _MARK], directory, code, ".py")
