"""Runs a coroutine at once until it first waits, without a task. Most that answer a request never wait."""

import asyncio
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, Final, TypeVar

_Result = TypeVar("_Result")
# The step after the last one.
_ENDED: Final = object()


def run_at_once(coroutine: Coroutine[Any, Any, object], loop: asyncio.AbstractEventLoop) -> "asyncio.Task[Any] | None":
    """Run a coroutine until it ends or waits, and the rest in a task. Return the task, or None if it has ended.

    Before it waits, the coroutine has no current task. Raises what the coroutine raises before it waits.
    """
    steps = coroutine.__await__()
    # Compiled code would give the exception of `send` at the end a traceback.
    awaited = next(steps, _ENDED)
    if awaited is _ENDED:
        return None
    rest: Any = _Rest(steps, awaited)
    return loop.create_task(rest)


def take_at_once(awaitable: Awaitable[_Result]) -> tuple[_Result | None, Awaitable[_Result] | None]:
    """Return the result of an awaitable that need not wait, or None and an awaitable for it.

    Raises what the awaitable raises before it waits.
    """
    # The check of an abstract class takes ten times as long.
    if not hasattr(awaitable, "send"):
        return None, awaitable
    results: list[_Result] = []
    steps = _take(awaitable, results)
    awaited = next(steps, _ENDED)
    if awaited is _ENDED:
        return results[0], None
    return None, _Rest(steps, awaited)


def _take(awaitable: Awaitable[_Result], results: list[_Result]) -> Generator[Any, Any, _Result]:
    """Await, and add the result to `results`."""
    result = yield from awaitable.__await__()
    results.append(result)
    return result


class _Rest:
    """The rest of a coroutine that waits for `awaited`. It has the methods of collections.abc.Coroutine.

    Unlike a coroutine function, it passes on a cancellation that comes before its first step.
    """

    def __init__(self, coroutine: Any, awaited: object) -> None:  # noqa: ANN401 - of any kind
        self._coroutine = coroutine
        self._awaited = awaited
        self._is_first = True

    def send(self, value: Any) -> Any:  # noqa: ANN401 - that of the coroutine
        if self._is_first:
            self._is_first = False
            awaited, self._awaited = self._awaited, None
            return awaited
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:  # noqa: ANN401 - as above
        self._is_first = False
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> "_Rest":
        return self

    def __iter__(self) -> "_Rest":
        return self

    def __next__(self) -> Any:  # noqa: ANN401 - as above
        return self.send(None)
