"""ChangeEvent: lets an event loop wait for changes on other threads."""

import asyncio
import contextlib
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
