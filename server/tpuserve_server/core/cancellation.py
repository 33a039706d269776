"""Whose cancellation a caught CancelledError is. The one rule for all code that cancels its own task."""

import asyncio


def take_back(task: asyncio.Task[object]) -> bool:
    """Take back one cancellation of `task`, which the caller has made; whether it was the only one.

    A task that is cancelled twice in one turn of the loop sees one CancelledError. False: another asked for the
    cancellation too, such as the server's stop or a timeout around the task, and the error must go on.
    """
    return task.uncancel() == 0
