"""LoopWatch: measures how busy an event loop is, and logs where it stands still, while all its requests wait."""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
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

    def __init__(self, measured: Callable[[float, float | None], None], limit_s: float = LIMIT_S) -> None:
        """Log a loop that has given no sign of life for `limit_s`.

        Call `measured` each second on the thread, with the time and the seconds since the loop's start in which it used
        a CPU or waited for one, or None if the system does not report them.
        """
        self._measured = measured
        self._limit_s = limit_s
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch the running loop, from its thread."""
        arguments = (asyncio.get_running_loop(), threading.get_ident(), threading.get_native_id())
        self._thread = threading.Thread(target=self._run, args=arguments, name="loop-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the watch. Blocks for a moment. Safe to call without a start."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, loop: asyncio.AbstractEventLoop, thread: int, native_id: int) -> None:
        schedule = Path(f"/proc/self/task/{native_id}/schedstat")
        self._measure(schedule)
        while not self._stopping.wait(_INTERVAL_S):
            self._measure(schedule)
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

    def _measure(self, schedule: Path) -> None:
        try:
            self._measured(time.monotonic(), busy_s(schedule))
        except Exception:  # A bug must not end the watch and freeze the demand that an autoscaler reads.
            _log.exception("Measuring the event loop failed")

    def _wait(self, alive: threading.Event, timeout_s: float = threading.TIMEOUT_MAX) -> bool:
        """Wait for a sign of life, until the timeout or the stop. Return whether there is one."""
        until_s = time.monotonic() + timeout_s
        while not alive.wait(min(_INTERVAL_S, max(0.0, until_s - time.monotonic()))):
            if time.monotonic() >= until_s or self._stopping.is_set():
                return False
        return True


def busy_s(schedule: Path) -> float | None:
    """Return the seconds in which a thread ran or waited for a CPU, or None if the system does not report them.

    The waits count because a thread without enough CPU is as busy as one that runs all the time. `schedule` is the file
    of the thread (Linux, Documentation/scheduler/sched-stats.rst: time on a CPU, time on a run queue, in nanoseconds).
    """
    try:
        running, waiting, _ = schedule.read_text().split()
        return (int(running) + int(waiting)) / 1e9
    except (OSError, ValueError):
        return None
