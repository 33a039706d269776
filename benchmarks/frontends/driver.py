"""A front-end process without Envoy: it sends requests of one row to an engine over a link, as fast as they return.

`python -m benchmarks.frontends.driver DESCRIPTOR IN_FLIGHT`. It prints a line when it has its first answers, and ends
when the engine closes the link.
"""

import asyncio
import socket
import sys
from typing import Final

import numpy as np
import uvloop

from benchmarks.frontends.measured_engine import READY_LINE
from benchmarks.harness.measurement import WrongAnswer
from benchmarks.harness.mlp_model import INPUT, OUTPUT, example
from benchmarks.overhead.instant_model import ID, answer
from tpuserve_server.core.deadline import Deadline, SystemClock
from tpuserve_server.core.errors import Unavailable
from tpuserve_server.core.registry import ModelRegistry
from tpuserve_server.core.service import InferenceService
from tpuserve_server.core.types import ModelSpec
from tpuserve_server.link.connection import Connection
from tpuserve_server.link.front_end import FrontEndLink
from tpuserve_server.metrics.prometheus import PrometheusMetrics

# Requests before the first line. They warm up the engine and its buffers.
_WARM_UP_REQUESTS: Final = 500


async def drive(descriptor: int, in_flight: int) -> None:
    """Keep `in_flight` requests at the engine until it ends the link. Raises WrongAnswer for a wrong first answer."""
    clock = SystemClock()
    metrics = PrometheusMetrics()
    registry = ModelRegistry([], metrics)
    link = FrontEndLink(Connection(socket.socket(fileno=descriptor)), registry, clock, metrics)
    ended = asyncio.Event()
    await link.start({}, ended.set)
    service = InferenceService(registry, clock)
    await _predict(service, _WARM_UP_REQUESTS, is_checked=True)
    print(READY_LINE, flush=True)
    callers = [asyncio.create_task(_predict_until(service, ended)) for _ in range(in_flight)]
    await asyncio.gather(*callers)
    link.close()


async def _predict_until(service: InferenceService, ended: asyncio.Event) -> None:
    while not ended.is_set():
        try:
            await _predict(service, 1)
        except Unavailable:  # The engine has ended during the request.
            return


async def _predict(service: InferenceService, requests: int, *, is_checked: bool = False) -> None:
    inputs = {INPUT: example()}
    with service.acquire(ModelSpec(ID.name)) as model:
        prepared = model.prepare(inputs)
        assert prepared is not None, "the version has batching and no response cache"
        for _ in range(requests):
            result = await model.predict_prepared(prepared, inputs, Deadline.never())
            if is_checked and not np.array_equal(result.outputs[OUTPUT], answer(inputs[INPUT])):
                raise WrongAnswer(f"expected {answer(inputs[INPUT])}, got {result.outputs[OUTPUT]}")


if __name__ == "__main__":
    uvloop.run(drive(int(sys.argv[1]), int(sys.argv[2])))
