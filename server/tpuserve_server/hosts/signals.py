"""Signals of a host: SIGTERM and SIGINT stop it, SIGHUP reloads its configuration, SIGUSR1 has no effect."""

import asyncio
import logging
import signal
from collections.abc import Callable

_log = logging.getLogger(__name__)

_STOP = (signal.SIGTERM, signal.SIGINT)
# Signals that other servers use, for example to reopen log files. By default they end a process.
_WITHOUT_EFFECT = (signal.SIGUSR1,)


def ignore_until_serving() -> None:
    """Ignore SIGHUP and SIGUSR1 until `HostSignals` handles them. The start reads the configuration anyway."""
    for number in (signal.SIGHUP, *_WITHOUT_EFFECT):
        signal.signal(number, signal.SIG_IGN)


class HostSignals:
    """Signal handlers on the main thread's running loop, from construction until the loop closes."""

    def __init__(self, *, force: Callable[[int], None], reload: Callable[[], None]) -> None:
        """Install the handlers. All of them call on the loop.

        The first SIGTERM or SIGINT starts a drain. The second calls `force(exit_code)`, which should not return. SIGHUP
        calls `reload`.
        """
        self._force = force
        self._reload = reload
        self._first = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in _STOP:
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        for number in _WITHOUT_EFFECT:
            loop.add_signal_handler(number, _ignore, number)

    async def first(self) -> None:
        """Wait for the first signal to stop."""
        await self._first.wait()

    def _stop(self, number: int) -> None:
        if self._first.is_set():
            self._force(128 + number)  # Shells report this code for a process that a signal ended.
        self._first.set()

    def _hang_up(self) -> None:
        if self._first.is_set():
            _log.info("Ignored SIGHUP: the server is shutting down")
        else:
            self._reload()


def _ignore(number: int) -> None:
    _log.info("Ignored %s: it has no effect", signal.Signals(number).name)
