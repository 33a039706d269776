"""Changes of an object: functions that it calls, and an event that event loops await."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable


class ChangeEvent:
    """An event that any thread sets and the event loop that created it awaits. Subscribe the object itself.

    Clear it before reading the state that may have changed: the next round then sees a change between the two.
    """

    def __init__(self) -> None:
        """Create a cleared event for the running loop."""
        self._event = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> None:
        """Report a change."""
        # The loop may be closed when a last state changes during shutdown. Then no task waits for the change.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        """Forget the changes so far, because the caller is about to read the state."""
        self._event.clear()

    async def wait(self) -> None:
        """Wait for a change since `clear`."""
        await self._event.wait()


async def wait_until(
    subscribe: Callable[[Callable[[], None]], Callable[[], None]], condition: Callable[[], bool]
) -> None:
    """Wait until `condition` holds. It is checked now and after every change that `subscribe` reports."""
    changed = ChangeEvent()
    unsubscribe = subscribe(changed)
    try:
        while True:
            changed.clear()
            if condition():
                return
            await changed.wait()
    finally:
        unsubscribe()


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
