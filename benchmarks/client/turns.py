"""CPU of this process during predictions, by library: in rounds, so that the libraries meet the same machine."""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from benchmarks.client.libraries import ASYNCIO, BLOCKING, AsyncCall, Call
from benchmarks.harness.targets import PROTOCOLS, Protocol

Api: TypeAlias = Literal["blocking", "asyncio"]
CALLERS: Final = (1, 32)


@dataclass(frozen=True, slots=True)
class Load:
    """Concurrent callers: threads of a blocking client, tasks of an asyncio client."""

    protocol: Protocol
    api: Api
    callers: int

    def __str__(self) -> str:
        name = "gRPC" if self.protocol == "grpc" else "REST"
        return f"{name}, {self.api}, {self.callers} caller{'s' if self.callers > 1 else ''}"


@dataclass(frozen=True, slots=True)
class Turn:
    """One library under one load. `cpu_us` is the CPU time of a prediction, user and system, in microseconds."""

    load: Load
    library: str
    cpu_us: float


@dataclass(frozen=True, slots=True)
class Burst:
    """CPU in milliseconds of the same concurrent asyncio calls: without connections and metadata, and with them."""

    library: str
    cold_ms: float
    warm_ms: float


def loads() -> list[Load]:
    """Return all loads."""
    apis: tuple[Api, ...] = ("blocking", "asyncio")
    return [Load(protocol, api, callers) for protocol in PROTOCOLS for api in apis for callers in CALLERS]


def measure_round(load: Load, ports: dict[Protocol, int], calls: int, number: int) -> Iterator[Turn]:
    """Measure each library under the load, for about `calls` predictions. The first library changes with `number`."""
    each = -(-calls // load.callers)
    for library in rotated(list(BLOCKING[load.protocol]), number):
        port = ports[load.protocol]
        if load.api == "blocking":
            with BLOCKING[load.protocol][library](port) as call:
                in_threads(call, load.callers, 2)  # connect
                cpu_s = in_threads(call, load.callers, each)
        else:
            cpu_s = asyncio.run(_asyncio_s(load, library, port, each))
        yield Turn(load, library, 1e6 * cpu_s / (each * load.callers))


def rotated(libraries: Sequence[str], number: int) -> list[str]:
    """Return the libraries in the order of round `number`."""
    start = number % len(libraries)
    return [*libraries[start:], *libraries[:start]]


def measure_burst(library: str, port: int, calls: int) -> Burst:
    """Send concurrent asyncio REST calls with a new client, and again with the same client."""
    return asyncio.run(_burst(library, port, calls))


def in_threads(call: Call, callers: int, each: int) -> float:
    """Call `each` times in each of `callers` threads. Return the CPU-seconds of this process.

    Raises the first exception of a call.
    """
    errors: list[Exception] = []

    def repeat() -> None:
        try:
            for _ in range(each):
                call()
        except Exception as error:  # raised again in the caller's thread
            errors.append(error)

    threads = [threading.Thread(target=repeat, name=f"caller-{number}") for number in range(callers)]
    before_s = time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cpu_s = time.process_time() - before_s
    if errors:
        raise errors[0]
    return cpu_s


async def in_tasks(call: AsyncCall, callers: int, each: int) -> float:
    """Call `each` times in each of `callers` tasks. Return the CPU-seconds of this process."""

    async def repeat() -> None:
        for _ in range(each):
            await call()

    before_s = time.process_time()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(callers):
            tasks.create_task(repeat())
    return time.process_time() - before_s


async def _asyncio_s(load: Load, library: str, port: int, each: int) -> float:
    async with ASYNCIO[load.protocol][library](port) as call:
        await in_tasks(call, load.callers, 2)  # connect
        return await in_tasks(call, load.callers, each)


async def _burst(library: str, port: int, calls: int) -> Burst:
    async with ASYNCIO["rest"][library](port) as call:
        cold_s = await in_tasks(call, calls, 1)
        warm_s = await in_tasks(call, calls, 1)
        return Burst(library, 1000 * cold_s, 1000 * warm_s)
