"""Running Orbax's reads in a thread of their own, with an event loop that outlives its end.

Orbax reads all arrays at once and closes its loop when one fails; the others then answer to a closed loop, and Python
prints a traceback for each. The thread is for callers with a loop of their own, such as notebooks.
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
        """What comes after the end is dropped: nobody waits for it."""
        if self.is_closed():
            return asyncio.Handle(callback, args, self)
        return super().call_soon_threadsafe(callback, *args, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """The first array that fails is told of; that others fail too, which nobody asked for, is not."""
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
    """What `read` returns or raises. Blocks."""
    with _patient_loops(), ThreadPoolExecutor(1, "orbax") as thread:
        return thread.submit(read).result()
