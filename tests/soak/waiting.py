"""Waiting for conditions of another process, which sends no event."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

PATIENCE_S: Final = 120.0
_INTERVAL_S: Final = 0.1


class NotInTimeError(Exception):
    """A condition that did not become true in time. The message names it."""


async def wait_until(
    condition: Callable[[], Awaitable[bool]], what: str, timeout_s: float = PATIENCE_S, interval_s: float = _INTERVAL_S
) -> None:
    """Wait until a condition is true. Raises NotInTimeError."""
    never = asyncio.Event()
    try:
        async with asyncio.timeout(timeout_s):
            while not await condition():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(never.wait(), interval_s)
    except TimeoutError as error:
        raise NotInTimeError(f"{what}: not within {timeout_s:.0f} s") from error
