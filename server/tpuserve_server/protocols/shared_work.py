"""SharedWork: blocking work whose result all clients that wait for it share."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class SharedWork(Generic[Result]):
    """Runs one function at a time on a worker thread. Its event loop's thread owns it.

    However many clients wait, they occupy one worker thread. All that ask for the same function get one result: that of
    the next run that starts after their request, so that it covers everything before it.
    """

    def __init__(self) -> None:
        """Begin without work."""
        self._running = asyncio.Lock()
        self._next: dict[Callable[[], Result], asyncio.Task[Result]] = {}

    async def result(self, work: Callable[[], Result]) -> Result:
        """Wait for the result of `work`, which may block. Raises its error."""
        if work not in self._next:
            self._next[work] = asyncio.create_task(self._run(work))
        # A client that disconnects must not cancel the work of the others.
        return await asyncio.shield(self._next[work])

    async def _run(self, work: Callable[[], Result]) -> Result:
        async with self._running:
            # Later clients get a later result.
            del self._next[work]
            return await asyncio.to_thread(work)
