"""A common blocking interface for both clients, so that one test covers both."""

import asyncio
import contextvars
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Self, cast

from tpuserve_client import AsyncClient, Client


class Clock:
    """A clock that advances only in pauses, for either client."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.pauses_s: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.pauses_s.append(seconds)
        self.now_s += seconds

    async def async_sleep(self, seconds: float) -> None:
        self.sleep(seconds)


class AwaitedClient:
    """An AsyncClient with a private event loop and the blocking interface of Client."""

    def __init__(self, make: Callable[[], AsyncClient]) -> None:
        self._runner = asyncio.Runner()
        self._client = make()

    def __getattr__(self, name: str) -> Callable[..., object]:
        return partial(self._call, getattr(self._client, name))

    def _call(self, method: Callable[..., Awaitable[object]], *args: object, **kwargs: object) -> object:
        async def awaited() -> object:
            return await method(*args, **kwargs)

        return self._runner.run(awaited(), context=contextvars.copy_context())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._call(self._client.close)
        self._runner.close()


def make_client(
    kind: str,
    address: str,
    clock: Clock | None = None,
    **options: Any,  # noqa: ANN401  of both clients
) -> Client:
    """Return a "sync" or "async" client with `options`, which uses `clock` if given."""
    options.setdefault("clock", clock or time.monotonic)
    if kind == "sync":
        return Client(address, sleep=clock.sleep if clock else time.sleep, **options)
    rest = clock.async_sleep if clock else asyncio.sleep
    awaited = AwaitedClient(lambda: AsyncClient(address, sleep=rest, **options))
    return cast("Client", awaited)  # the methods have the same names and arguments
