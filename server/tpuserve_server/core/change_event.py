"""Waiting on an event loop for something that changes on other threads."""

import asyncio
import contextlib
from collections.abc import Callable


class ChangeEvent:
    """Set from any thread, awaited on the event loop it was made on. Subscribe the object itself.

    Clear it before looking at what may have changed: a change between the two is seen in the next round.
    """

    def __init__(self) -> None:
        """Not set; belongs to the running loop."""
        self._event = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> None:
        """Something changed."""
        # The loop may be gone when a last state changes during shut-down; then nobody watches any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        """What changed so far will be looked at now."""
        self._event.clear()

    async def wait(self) -> None:
        """Until something changed since `clear`."""
        await self._event.wait()


async def wait_until(
    subscribe: Callable[[Callable[[], None]], Callable[[], None]], condition: Callable[[], bool]
) -> None:
    """Until `condition` holds, looked at now and after every change that `subscribe` tells of."""
    changed = ChangeEvent()
    leave = subscribe(changed)
    try:
        while True:
            changed.clear()
            if condition():
                return
            await changed.wait()
    finally:
        leave()
