"""Tests for the real batcher with closed-loop clients on virtual time: two half batches merge into one."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from tests.support.virtual_time import ROW_TO_ROW, SILENT_METRICS, SimulatedDevice, VirtualClock, VirtualLoop
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.device_queue import DeadlineCheck, DeviceQueue, HostDelay
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters
from tpuserve_server.core.batching.policies import GreedyPolicy, Regroup
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.batching.task import Outcome, Task
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.types import ServableId

SIZES = (1, 2, 4, 8, 16)
SECONDS = 30.0
# The costs of a ResNet-50 on two cores.
T0_S, PER_ROW_S = 0.045, 0.0205


def cost_s(rows: int) -> float:
    return T0_S + PER_ROW_S * rows


@dataclass
class House:
    """A batcher, its device and its clients."""

    max_batch_size: int = 16
    clock: VirtualClock = field(default_factory=VirtualClock)
    # Start times and rows of the runs. `idle_s` is the device's idle time before each run while a request waited.
    batches: list[tuple[float, int]] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    idle_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.loop = VirtualLoop(self.clock)
        self._free_s = 0.0
        self._waiting: dict[Task, float] = {}
        costs = CostModel()
        for rows in SIZES:
            costs.learn(ROW_TO_ROW.name, rows, cost_s(rows))
        sizes = tuple(size for size in SIZES if size <= self.max_batch_size)
        options = BatchingOptions(self.max_batch_size, sizes)
        self.batcher = Batcher(
            BatchedVersion(
                ServableId("m", 1), SimulatedDevice(self.clock, self._begin), {ROW_TO_ROW.name: options}, costs
            ),
            BatchingParameters(max_enqueued_batches=64),
            DeviceServices(self.clock, SILENT_METRICS),
        )

    def _begin(self, rows: int) -> float:
        now_s = self.clock.monotonic_s()
        self.idle_s.append(now_s - max(self._free_s, min(self._waiting.values())))
        self.batches.append((now_s, rows))
        self._free_s = now_s + cost_s(rows)
        return cost_s(rows)

    def send(self, then: Callable[[], object] = lambda: None) -> None:
        """Send one row, and call `then` after the response."""
        future = self.loop.create_future()
        x = {"x": np.zeros((1, 1), np.float32)}
        task = Task(ROW_TO_ROW.name, ("y",), x, 1, Deadline.never(), future, shareable=True)
        came_s = self._waiting[task] = self.clock.monotonic_s()

        def completed(_: "object") -> None:
            outcome: Outcome = future.result()
            assert isinstance(outcome, dict)
            del self._waiting[task]
            self.latencies_s.append(self.clock.monotonic_s() - came_s)
            then()

        future.add_done_callback(completed)
        self.batcher.submit(task)

    def client(self, think_s: Callable[[], float], until_s: float = SECONDS) -> None:
        """Add a client that sends, waits for the response, thinks, and sends again."""

        def again() -> None:
            at_s = self.clock.monotonic_s() + think_s()
            if at_s < until_s:
                self.clock.at(at_s, self.send, again)

        again()

    def run(self) -> None:
        try:
            self.clock.run()
        finally:
            self.batcher.stop()

    def sizes_after(self, at_s: float) -> list[int]:
        return [rows for start_s, rows in self.batches if start_s > at_s]


def test_clients_that_come_straight_back_share_one_batch_and_all_are_answered_sooner() -> None:
    house, drawn = House(), random.Random(3)
    for _ in range(8):
        house.client(lambda: drawn.uniform(0.0005, 0.004))
    house.run()
    sizes = house.sizes_after(3.0)[:-1]
    assert sizes.count(8) > 0.95 * len(sizes)
    # Two halves would take two batches of four per response.
    settled = sorted(house.latencies_s[100:])
    assert settled[len(settled) // 2] < 0.9 * 2 * cost_s(4)


@pytest.mark.parametrize("clients", [1, 8])
def test_clients_that_take_their_time_are_not_waited_for(clients: int) -> None:
    house, drawn = House(), random.Random(4)
    for _ in range(clients):
        house.client(lambda: drawn.uniform(0.05, 0.3))
    house.run()
    assert len(house.batches) > 50
    assert max(house.idle_s) < 1e-6


def test_a_client_alone_that_comes_straight_back_is_not_waited_for() -> None:
    house = House()
    house.client(lambda: 0.002)
    house.run()
    assert set(house.sizes_after(0.0)) == {1}
    assert max(house.idle_s) < 1e-6


def test_who_comes_at_random_is_not_waited_for() -> None:
    house, drawn = House(), random.Random(5)
    at_s = 0.0
    while (at_s := at_s + drawn.expovariate(25.0)) < SECONDS:
        house.clock.at(at_s, house.send)
    house.run()
    assert len(house.latencies_s) > 600
    # Occasionally several requests arrive this close together by chance.
    assert sum(house.idle_s) < 0.001 * SECONDS


def test_those_who_leave_are_soon_not_waited_for_any_more() -> None:
    house, drawn = House(), random.Random(6)
    for number in range(8):
        house.client(lambda: drawn.uniform(0.0005, 0.004), SECONDS if number < 3 else 10.0)
    house.run()
    assert max(house.idle_s) <= cost_s(8) / 20 + 1e-6
    waited = [idle_s for (start_s, _), idle_s in zip(house.batches, house.idle_s, strict=True) if start_s > 11.0]
    assert max(waited) < 0.004 + 1e-6
    # The remaining three continue together.
    sizes = house.sizes_after(12.0)[:-1]
    assert sizes.count(4) > 0.9 * len(sizes)


def test_a_batch_that_would_be_too_large_is_not_waited_for() -> None:
    house = House(max_batch_size=4)
    for _ in range(8):
        house.client(lambda: 0.002)
    house.run()
    assert set(house.sizes_after(3.0)[:-4]) == {4}
    assert max(house.idle_s[20:]) < 1e-6


def test_nobody_is_waited_for_while_it_is_not_known_what_all_of_them_would_cost() -> None:
    known = {2: 0.1}
    regroup = Regroup(known.get, max_rows=16)
    for _ in range(5):
        regroup.completed(2, 0.1, 100.0)
        regroup.arrived(2, 100.001)
    regroup.completed(2, 0.1, 100.0)
    assert regroup.until_s(2) == 0.0
    known[4] = 0.15
    assert regroup.until_s(2) == pytest.approx(100.005)


@pytest.mark.parametrize(("usual_s", "counts"), [(0.00002, False), (0.1, True)])
def test_one_slow_run_of_a_light_model_is_not_counted_after(usual_s: float, counts: bool) -> None:
    costs = CostModel()
    costs.learn(ROW_TO_ROW.name, 1, usual_s)
    policy = GreedyPolicy(
        ROW_TO_ROW.name,
        BatchingOptions(4, (1, 2, 4)),
        costs,
        DeadlineCheck(ServableId("m", 1), DeviceQueue(1), HostDelay()),
    )
    loop = VirtualLoop(VirtualClock())
    x = {"x": np.zeros((1, 1), np.float32)}
    task = Task(ROW_TO_ROW.name, ("y",), x, 1, Deadline.never(), loop.create_future(), shareable=True)
    policy.answered([task], 0.05, 100.0)
    assert policy.waits is counts
