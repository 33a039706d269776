"""SuspectTurn: one suspect at a time loads or runs, so that the next end of the process blames one version alone."""

import threading
import time
from typing import Final

# A suspect waits no longer for another one, which may hang: one hung model must not stop the others.
LONGEST_TURN_S: Final = 10.0


class SuspectTurn:
    """The turn of a thread. A thread that has it may take it again. Thread-safe.

    The lock guards `_depth` and `_since_s`. Others read `_since_s` without it, to know how long the turn lasts.
    """

    def __init__(self, longest_s: float = LONGEST_TURN_S) -> None:
        """Let others wait `longest_s` for the end of a turn."""
        # A thread dispatches several runs before it takes the first result, so it takes the lock several times.
        self._lock = threading.RLock()
        self._longest_s = longest_s
        self._depth = 0
        self._since_s = 0.0

    def take(self) -> bool:
        """Take the turn, or return False if another thread has had it for too long. Blocks until then."""
        while True:
            wait_s = self._since_s + self._longest_s - time.monotonic()
            if self._lock.acquire(timeout=max(wait_s, 0.0)):
                self._depth += 1
                if self._depth == 1:
                    self._since_s = time.monotonic()
                return True
            if self._since_s + self._longest_s <= time.monotonic():
                return False

    def give_back(self) -> None:
        """End one `take` that returned True, on the same thread."""
        self._depth -= 1
        self._lock.release()
