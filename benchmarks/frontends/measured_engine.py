"""The engine's side of front-end processes in this process, without Envoy, with a device that answers at once.

The drivers are other processes (driver.py). Only the threads of the engine are measured.
"""

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import uvloop

from benchmarks.harness.process_tree import ServerDied
from benchmarks.harness.targets import ROOT
from benchmarks.overhead.instant_model import instant_registry
from tpuserve_server.core.registry import ModelRegistry
from tpuserve_server.link.connection import Connection
from tpuserve_server.link.engine import EngineLink
from tpuserve_server.link.publisher import EngineRules
from tpuserve_server.metrics.prometheus import PrometheusMetrics

READY_LINE: Final = "ready"
# Larger than the requests in flight of several drivers, so that the device takes all that wait.
BATCH_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_READY_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class EngineTime:
    """CPU of the engine for a request in microseconds, by thread, with `in_flight` requests from each driver."""

    drivers: int
    in_flight: int
    requests: int
    batch_requests: float
    loop_us: float
    device_us: float
    rate_per_s: float

    @property
    def serial_us(self) -> float:
        """Time of both threads. They share Python's lock, so they run one after the other."""
        return self.loop_us + self.device_us

    @property
    def limit_per_s(self) -> float:
        """Requests per second at which the engine's threads are always busy."""
        return 1e6 / self.serial_us


class _Reading(NamedTuple):
    at_s: float
    thread_s: float
    process_s: float
    requests: int
    batches: int


class _CountingMetrics(PrometheusMetrics):
    """Counts the requests and batches that have ended. A device thread writes, and the loop reads."""

    ended_requests = 0
    ended_batches = 0

    def batch_finished(self, *, task_rows: Sequence[int], **facts: Any) -> None:  # noqa: ANN401  # passed on unchanged
        self.ended_requests += len(task_rows)
        self.ended_batches += 1
        super().batch_finished(task_rows=task_rows, **facts)

    def read(self) -> _Reading:
        times_s = time.monotonic(), time.thread_time(), time.process_time()
        return _Reading(*times_s, self.ended_requests, self.ended_batches)


def measure_engine(drivers: int, in_flight: int, duration_s: float) -> EngineTime:
    """Measure the engine with `drivers` drivers for `duration_s` seconds. Blocks, with the event loop on this thread.

    Raises ServerDied if a driver ends before.
    """
    metrics = _CountingMetrics()
    with instant_registry(metrics, BATCH_SIZES) as registry:
        before, after = uvloop.run(_read_twice(registry, metrics, drivers, in_flight, duration_s))
    requests, batches = after.requests - before.requests, after.batches - before.batches
    if not requests:
        raise ServerDied(f"No request of {drivers} drivers was answered in {duration_s:g} s")
    loop_s = after.thread_s - before.thread_s
    return EngineTime(
        drivers,
        in_flight,
        requests,
        requests / batches,
        loop_us=1e6 * loop_s / requests,
        device_us=1e6 * (after.process_s - before.process_s - loop_s) / requests,
        rate_per_s=requests / (after.at_s - before.at_s),
    )


async def _read_twice(
    registry: ModelRegistry, metrics: _CountingMetrics, drivers: int, in_flight: int, duration_s: float
) -> tuple[_Reading, _Reading]:
    async with contextlib.AsyncExitStack() as stack:
        # One after the other: the start of a driver takes more CPU than a second of the measurement.
        for _ in range(drivers):
            await stack.enter_async_context(_driver(registry, in_flight))
        before = metrics.read()
        await asyncio.sleep(duration_s)
        return before, metrics.read()


@contextlib.asynccontextmanager
async def _driver(registry: ModelRegistry, in_flight: int) -> AsyncIterator[None]:
    """Run a driver that is connected and warm, and check at the end that it still runs."""
    ours, theirs = socket.socketpair()
    with theirs:
        descriptor = theirs.fileno()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.frontends.driver", str(descriptor), str(in_flight)),
            stdout=asyncio.subprocess.PIPE,
            pass_fds=(descriptor,),
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
    link = EngineLink(Connection(ours), registry, EngineRules(_is_logged, False), {}, lambda _: None)
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), _READY_TIMEOUT_S)
        if line.decode().strip() != READY_LINE:
            raise ServerDied("A driver of the engine ended before its first answer; its error is above")
        yield
        if process.returncode is not None:
            raise ServerDied(f"A driver of the engine ended with code {process.returncode}")
    finally:
        # The driver ends with its link. One that was not connected ends with its socket.
        link.close()
        await process.wait()


def _is_logged(_model: str) -> bool:
    return False
