"""CPU of demand: what the batcher does for each request, and the sample of each second."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from benchmarks.batching.simulation import warmed
from tests.support.virtual_time import ROW_TO_ROW
from tpuserve_server.core.batching.batch import BatchPolicy, SignatureRules, WaitingBatches
from tpuserve_server.core.batching.demand import Demand, DemandTotals
from tpuserve_server.core.batching.device_queue import DeadlineCheck, DeviceQueue, HostDelay
from tpuserve_server.core.batching.parameters import BatchingOptions
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.observe.metrics.demand_measurements import DemandMeasurements
from tpuserve_server.observe.metrics.series import ModelPlaces
from tpuserve_server.observe.metrics.server_measurements import ServerMeasurements

_SIZES: Final = (1, 2, 4, 8)


def priced_request() -> Callable[[], None]:
    """Return a function that counts a request as the batcher does."""
    deadlines = DeadlineCheck(ServableId("m", 1), DeviceQueue(1), HostDelay())
    costs = warmed(_SIZES, lambda rows: 0.001 * rows)
    options = BatchingOptions(_SIZES[-1], _SIZES)
    rules = SignatureRules(ROW_TO_ROW, options, costs, WaitingBatches(), BatchPolicy(deadlines))
    future = asyncio.new_event_loop().create_future()
    inputs = {"x": np.zeros((1, 1), np.float32)}
    task = Task(ROW_TO_ROW.name, ("y",), inputs, 1, Deadline.never(), future, shareable=True)
    demand = Demand(1)
    return lambda: demand.arrived(rules.price_s(task), task.priority)


class _Versions(ServerMeasurements):
    """Versions with requests since the sample before."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._ids = [ServableId(f"m{number}", 1) for number in range(count)]
        self._requests = 0

    def demand(self) -> Mapping[ServableId, DemandTotals]:
        self._requests += 1
        return {id_: DemandTotals(0.01 * self._requests, 0.0, self._requests, 0.01) for id_ in self._ids}


def sample_us(versions: int, count: int = 30) -> float:
    """Return the CPU of a sample in microseconds."""
    demand = DemandMeasurements(_Versions(versions), ModelPlaces())
    demand.sample(0.0, 0.0)
    before_s = time.process_time()
    for number in range(1, count + 1):
        demand.sample(float(number), float(number))
    return 1e6 * (time.process_time() - before_s) / count
