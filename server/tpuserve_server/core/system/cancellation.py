"""Decides which caller a caught CancelledError belongs to. All code that cancels its own task uses this rule."""

import asyncio


def take_back(task: asyncio.Task[object]) -> bool:
    """Withdraw one cancellation of `task` by the caller, and return whether it was the only one.

    A task that is cancelled twice in one iteration of the loop receives one CancelledError. False means that another
    caller also cancelled the task, such as the server's stop or a timeout around it. The error must then propagate.
    """
    return task.uncancel() == 0
