"""VersionTimer: calls back when a version's time is over, such as the pause before the next try of a load."""

import math
import threading
from collections.abc import Callable

from tpuserve_server.core.terms.deadline import WaitingClock
from tpuserve_server.core.terms.types import ServableId


class VersionTimer:
    """One thread, started by the first `set`, that calls `on_due` for each version that is due.

    `_changed` guards `_due_s` and `_stopping`. `on_due` is called without the lock and must not block.
    """

    def __init__(self, clock: WaitingClock, on_due: Callable[[ServableId], None], *, name: str) -> None:
        """Start without versions. `name` is that of the thread."""
        self._clock = clock
        self._on_due = on_due
        self._changed = threading.Condition()
        self._due_s: dict[ServableId, float] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name)

    def set(self, servable_id: ServableId, delay_s: float) -> None:
        """Call `on_due` for this version once, `delay_s` seconds from now."""
        with self._changed:
            if self._stopping:
                return
            self._due_s[servable_id] = self._clock.monotonic_s() + delay_s
            if self._thread.ident is None:
                self._thread.start()
            self._changed.notify()

    def cancel(self, servable_id: ServableId) -> None:
        """Cancel the call for this version. A call that has already begun may still arrive."""
        with self._changed:
            self._due_s.pop(servable_id, None)

    def stop(self) -> None:
        """Cancel all calls and join the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while (servable_id := self._next()) is not None:
            self._on_due(servable_id)

    def _next(self) -> ServableId | None:
        """Wait for the next version that is due, and return it, or None once stopped."""
        with self._changed:
            while not self._stopping:
                first = min(self._due_s, key=self._due_s.__getitem__, default=None)
                due_s = math.inf if first is None else self._due_s[first]
                if first is not None and due_s <= self._clock.monotonic_s():
                    del self._due_s[first]
                    return first
                self._clock.wait_until(self._changed, due_s)
            return None
