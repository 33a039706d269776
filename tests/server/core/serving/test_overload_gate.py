"""Tests for refusals before the model of a request is known."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.support.virtual_time import ROW_TO_ROW, SILENT_METRICS, SimulatedDevice, VirtualClock, VirtualLoop
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters
from tpuserve_server.core.batching.runner import BatchedVersion, DeviceServices
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.models.loader import Loaded, LoadedVersion
from tpuserve_server.core.serving.overload_gate import OverloadGate
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import TooLate
from tpuserve_server.core.terms.server_state import Traffic
from tpuserve_server.core.terms.types import ServableId

if TYPE_CHECKING:
    import asyncio


class Served:
    """A version whose batches of one row take a second each."""

    def __init__(self, clock: VirtualClock) -> None:
        self.loop = VirtualLoop(clock)
        costs = CostModel()
        for _ in range(10):
            costs.learn(ROW_TO_ROW.name, 1, 1.0)
        self.device = SimulatedDevice(clock, lambda rows: 1.0)
        self.batcher = Batcher(
            BatchedVersion(ServableId("m", 1), self.device, {ROW_TO_ROW.name: BatchingOptions(1, (1,))}, costs),
            BatchingParameters(max_enqueued_batches=1000),
            DeviceServices(clock, SILENT_METRICS),
        )
        self.loaded = LoadedVersion(self.device, self.batcher)

    def submit(self, due_s: float = float("inf")) -> None:
        future: asyncio.Future[object] = self.loop.create_future()
        inputs = {"x": np.zeros((1, 1), np.float32)}
        task = Task(ROW_TO_ROW.name, ("y",), inputs, 1, Deadline(due_s), future, shareable=True)  # type: ignore[arg-type]
        self.batcher.submit(task)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def pair(clock: VirtualClock) -> Iterator[tuple[Served, Served]]:
    # A virtual clock drives one batcher. The second one gets no requests.
    idle_clock = VirtualClock()
    both = Served(clock), Served(idle_clock)
    yield both
    for each, served in zip((clock, idle_clock), both, strict=True):
        each.run()
        served.batcher.stop()


def gate(clock: VirtualClock, traffic: Traffic, *served: Served) -> OverloadGate:
    loaded: Sequence[Loaded] = [each.loaded for each in served]
    return OverloadGate(lambda: loaded, traffic, clock)


def overload(clock: VirtualClock, served: Served) -> None:
    """Run a batch, wait behind it, and let the batcher refuse a request."""
    for _ in range(8):
        served.submit()
    with pytest.raises(TooLate):
        served.submit(2.0)


def test_without_versions_nothing_is_refused(clock: VirtualClock) -> None:
    empty = gate(clock, Traffic())
    assert not empty.may_refuse
    assert empty.lateness_s(Deadline(0.0)) == 0.0


def test_a_version_that_has_refused_nothing_keeps_the_gate_open(
    clock: VirtualClock, pair: tuple[Served, Served]
) -> None:
    assert not gate(clock, Traffic(), pair[0]).may_refuse


def test_every_version_must_refuse(clock: VirtualClock, pair: tuple[Served, Served]) -> None:
    traffic = Traffic()
    alone, both = gate(clock, traffic, pair[0]), gate(clock, traffic, *pair)
    found: dict[str, float] = {}

    def check() -> None:
        overload(clock, pair[0])
        now_s = clock.monotonic_s()
        found["alone"] = alone.lateness_s(Deadline(now_s + 2.0))
        found["long"] = alone.lateness_s(Deadline(now_s + 100.0))
        found["never"] = alone.lateness_s(Deadline.never())
        found["both"] = both.lateness_s(Deadline(now_s + 2.0))

    # The first batch has run, so that the cost of a batch is known.
    clock.at(0.0, pair[0].submit)
    clock.at(1.5, check)
    clock.run()
    assert found["alone"] > 1.0
    assert found["long"] == found["never"] == found["both"] == 0.0
    assert traffic.refused == {"too_late": 1, "rate": 0}
