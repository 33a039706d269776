"""Listeners: functions to call after each change of one object."""

import logging
import threading
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Listeners:
    """The listeners of one object. Thread-safe: `_lock` guards the list, and no listener is called under it."""

    def __init__(self, subject: str) -> None:
        """Start without listeners. `subject` names the object in the log."""
        self._subject = subject
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []

    def subscribe(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call `on_change` after each change, on the thread that made it. Return a function to unsubscribe."""
        with self._lock:
            self._listeners.append(on_change)

        def unsubscribe() -> None:
            with self._lock:
                self._listeners.remove(on_change)

        return unsubscribe

    def notify(self) -> None:
        """Call every listener. A listener that fails stops neither the caller nor the others."""
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            try:
                listener()
            except Exception:
                # The change has happened already, whatever a listener raises.
                _log.exception("A listener to %s failed", self._subject)
