"""SIGTERM and SIGINT: the first signal starts a drain, the second forces the end."""

import asyncio
import signal
from collections.abc import Callable

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Signal handlers on the main thread's running loop, from construction until the loop closes."""

    def __init__(self, force: Callable[[int], None]) -> None:
        """Install the handlers. The second signal calls `force(exit_code)` on the loop, which should not return."""
        self._force = force
        self._first = asyncio.Event()
        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._received, number)

    async def first(self) -> None:
        """Wait for the first signal."""
        await self._first.wait()

    def _received(self, number: int) -> None:
        if self._first.is_set():
            self._force(128 + number)  # Shells report this code for a process that a signal ended.
        self._first.set()
