"""SIGTERM and SIGINT: the first asks for a drain, the second forces the end."""

import asyncio
import signal
from collections.abc import Callable

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Installed on the main thread's running loop when made, and gone with it."""

    def __init__(self, force: Callable[[int], None]) -> None:
        """`force(exit_code)` runs on the loop at the second signal and should not return."""
        self._force = force
        self._first = asyncio.Event()
        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._received, number)

    async def first(self) -> None:
        """Wait for the first signal."""
        await self._first.wait()

    def _received(self, number: int) -> None:
        if self._first.is_set():
            self._force(128 + number)  # What a shell reports for a process that a signal ended.
        self._first.set()
