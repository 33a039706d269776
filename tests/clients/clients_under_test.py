"""A common blocking interface for both clients, so that one test covers both."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Self, cast

from tpuserve_client import AsyncClient, Client, Retry, Tls

NORMAL_RETRY = Retry()


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

        return self._runner.run(awaited())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._call(self._client.close)
        self._runner.close()


def make_client(
    kind: str,
    address: str,
    clock: Clock | None = None,
    *,
    timeout_s: float | None = 30.0,
    jitter: Callable[[], float] = random.random,
    retry: Retry = NORMAL_RETRY,
    tls: Tls | None = None,
    headers: Mapping[str, str] | None = None,
) -> Client:
    """Return a "sync" or "async" client, which uses `clock` if given."""
    now = clock or time.monotonic
    if kind == "sync":
        sleep = clock.sleep if clock else time.sleep
        return Client(
            address, tls=tls, headers=headers, timeout_s=timeout_s, retry=retry, sleep=sleep, clock=now, jitter=jitter
        )
    rest = clock.async_sleep if clock else asyncio.sleep
    awaited = AwaitedClient(
        lambda: AsyncClient(
            address, tls=tls, headers=headers, timeout_s=timeout_s, retry=retry, sleep=rest, clock=now, jitter=jitter
        )
    )
    return cast("Client", awaited)  # the methods have the same names and arguments
