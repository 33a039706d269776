"""LoopWatch: logs where an event loop stands still. Requests, probes and metrics wait as long as it does."""

import asyncio
import logging
import sys
import threading
import time
import traceback
from typing import Final

_log = logging.getLogger(__name__)

_INTERVAL_S: Final = 1.0
LIMIT_S: Final = 10.0
# Innermost frames of the stack that a log line shows.
_MOST_FRAMES: Final = 12


class LoopWatch:
    """One thread that asks an event loop for a sign of life each second.

    It ends no process: a loop may also wait for an import or an extension that holds Python's lock. The liveness probe
    of an orchestrator decides.
    """

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        """Log a loop that has given no sign of life for `limit_s`."""
        self._limit_s = limit_s
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch the running loop, from its thread."""
        arguments = (asyncio.get_running_loop(), threading.get_ident())
        self._thread = threading.Thread(target=self._run, args=arguments, name="loop-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the watch. Blocks for a moment. Safe to call without a start."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        while not self._stopping.wait(_INTERVAL_S):
            alive = threading.Event()
            try:
                loop.call_soon_threadsafe(alive.set)
            except RuntimeError:  # The loop is closed.
                return
            asked_s = time.monotonic()
            # The second wait is for a machine that slept during the first one.
            if self._wait(alive, self._limit_s) or self._wait(alive, _INTERVAL_S):
                continue
            stack = "".join(traceback.format_stack(sys._current_frames().get(thread))[-_MOST_FRAMES:])
            _log.error("The event loop has not run for %.0f s. It is here:\n%s", time.monotonic() - asked_s, stack)
            if self._wait(alive):
                _log.warning("The event loop runs again, after %.0f s", time.monotonic() - asked_s)

    def _wait(self, alive: threading.Event, timeout_s: float = threading.TIMEOUT_MAX) -> bool:
        """Wait for a sign of life, until the timeout or the stop. Return whether there is one."""
        until_s = time.monotonic() + timeout_s
        while not alive.wait(min(_INTERVAL_S, max(0.0, until_s - time.monotonic()))):
            if time.monotonic() >= until_s or self._stopping.is_set():
                return False
        return True
