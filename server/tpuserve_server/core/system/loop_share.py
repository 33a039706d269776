"""LoopShare: how much of its time an event loop spends on runs of all models together."""

import asyncio


class LoopShare:
    """Lets an event loop run one batch, and then look at its sockets before the next one. Thread-safe.

    Without it, the runs of several models could follow each other, and all other requests would wait for their sum.
    """

    __slots__ = ("_ran",)

    def __init__(self) -> None:
        """Start without runs."""
        # Loops that have not looked at their sockets since their latest run. Only its own loop changes an entry.
        self._ran: set[asyncio.AbstractEventLoop] = set()

    def may_run(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether the running loop has looked at its sockets since its latest run."""
        return loop not in self._ran

    def ran(self, loop: asyncio.AbstractEventLoop) -> None:
        """Record a run on the running loop."""
        self._ran.add(loop)
        # A loop looks at its sockets before it calls what was added meanwhile.
        loop.call_soon(self._ran.discard, loop)
