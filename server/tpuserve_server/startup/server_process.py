"""ServerProcess: the child process of a server. It ends on `stop`, and when its parent process ends in any way."""

import os
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

# After a second signal, the server kills its own child processes, which takes a moment.
_FORCE_TIMEOUT_S = 10.0

# Write ends of pipes. When its pipe ends, a server drains, because its owner is gone.
_lifelines: "weakref.WeakSet[IO[bytes]]" = weakref.WeakSet()


def _close_lifelines() -> None:
    """Close the pipes in a forked copy of the owner, which must not keep the owner's servers alive."""
    for pipe in list(_lifelines):
        pipe.close()


os.register_at_fork(after_in_child=_close_lifelines)


class ServerProcess:
    """Child process in a separate session. Ctrl-C in a terminal and a notebook's interrupt do not reach it."""

    def __init__(
        self, flags: Sequence[str], log: Path, environment: Mapping[str, str], inherited: Sequence[int]
    ) -> None:
        """Start the process. The file descriptors `inherited` stay open in it. Raises OSError."""
        self._owner = os.getpid()
        # -P: a file in the working directory, such as a notebook's click.py, must not shadow a module.
        command = [sys.executable, "-P", "-m", "tpuserve_server.startup.child", *flags]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, bufsize=0, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True, pass_fds=inherited, env={**os.environ, **environment},
            )  # fmt: skip
        assert self._process.stdin is not None
        _lifelines.add(self._process.stdin)

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> int:
        """Block until the process has ended, and return its exit status. Raises subprocess.TimeoutExpired."""
        return self._process.wait(timeout_s)

    def stop(self, timeout_s: float) -> int:
        """Drain for at most `timeout_s` seconds, then force the exit. Blocks and returns the exit status.

        Does nothing in a forked copy of the owner.
        """
        if os.getpid() != self._owner:
            return 0
        try:
            self._end(timeout_s)
        finally:
            self._kill()
        return self._process.wait()

    def _end(self, timeout_s: float) -> None:
        for patience_s in (timeout_s, _FORCE_TIMEOUT_S):
            if self._process.poll() is not None:
                return
            self._process.terminate()
            try:
                self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                continue

    def _kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        assert self._process.stdin is not None
        self._process.stdin.close()
