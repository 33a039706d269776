"""Runs a coroutine at once until it first waits, without a task. Most that answer a request never wait."""

import asyncio
from collections.abc import Awaitable, Coroutine, Generator
from types import coroutine as generator_based
from typing import Any, TypeVar

_Result = TypeVar("_Result")


def run_at_once(coroutine: Coroutine[Any, Any, object], loop: asyncio.AbstractEventLoop) -> "asyncio.Task[Any] | None":
    """Run a coroutine until it ends or waits, and the rest in a task. Return the task, or None if it has ended.

    Before it waits, the coroutine has no current task. Raises what the coroutine raises before it waits.
    """
    try:
        awaited = coroutine.send(None)
    except StopIteration:
        return None
    return loop.create_task(_rest(coroutine, awaited))


def take_at_once(awaitable: Awaitable[_Result]) -> tuple[_Result | None, Awaitable[_Result] | None]:
    """Return the result of an awaitable that need not wait, or None and an awaitable for it.

    Raises what the awaitable raises before it waits.
    """
    if not isinstance(awaitable, Coroutine) and not hasattr(awaitable, "send"):
        return None, awaitable
    try:
        awaited = awaitable.send(None)
    except StopIteration as end:
        return end.value, None
    return None, _rest(awaitable, awaited)


async def _rest(coroutine: Any, awaited: object) -> Any:  # noqa: ANN401 - that of the coroutine
    return await _go_on(coroutine, awaited)


@generator_based
def _go_on(coroutine: Any, awaited: object) -> Generator[object, Any, Any]:  # noqa: ANN401
    """Go on with a coroutine that waits for `awaited`, as `await` does from its start."""
    while True:
        try:
            value = yield awaited
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as error:
            step, argument = coroutine.throw, error
        else:
            step, argument = coroutine.send, value
        try:
            awaited = step(argument)
        except StopIteration as end:
            return end.value
