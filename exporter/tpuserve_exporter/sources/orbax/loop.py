"""Runs Orbax's reads in a separate thread, with an event loop that ignores callbacks after it is closed.

Orbax reads all arrays at once, and closes its loop when one read fails. The other reads then call a closed loop, and
Python prints a traceback for each. The thread allows callers that have a running loop, such as notebooks.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import Any, TypeVar

_Answer = TypeVar("_Answer")


class _Loop(asyncio.SelectorEventLoop):
    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.Handle:
        """Ignore callbacks that come after the loop is closed, because no caller waits for them."""
        if self.is_closed():
            return asyncio.Handle(callback, args, self)
        return super().call_soon_threadsafe(callback, *args, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report errors, except those that no caller retrieved: reads that failed after the first one."""
        if "never retrieved" not in str(context.get("message")):
            super().call_exception_handler(context)


class _Policy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return _Loop()


@contextlib.contextmanager
def _patient_loops() -> Iterator[None]:
    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(_Policy())
    try:
        yield
    finally:
        asyncio.set_event_loop_policy(before)


def run_apart(read: Callable[[], _Answer]) -> _Answer:
    """Run `read` in a separate thread. Return its result, or raise its error. Blocks."""
    with _patient_loops(), ThreadPoolExecutor(1, "orbax") as thread:
        return thread.submit(read).result()
