"""Tests of demand: what the requests that arrive need of the device, by the real batcher on virtual time."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from tests.support.virtual_time import ROW_TO_ROW, SILENT_METRICS, SimulatedDevice, VirtualClock, VirtualLoop
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.demand import Demand, DemandTotals
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters, LatencyObjective
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import InvalidArgument, TooLate, Unavailable
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import ServableId

SIZES = (1, 4, 8)
# A full batch takes 0.1 s, so that the device answers 80 rows a second.
FULL_S = 0.1
CAPACITY = 80


def cost_s(rows: int) -> float:
    return 0.06 + 0.005 * rows


class Traffic:
    """One-row requests to a batcher of batches of up to 8 rows, and the number of them that were refused."""

    def __init__(
        self,
        options: BatchingOptions | None = None,
        *,
        knows_costs: bool = True,
        queue_length: int = 1000,
    ) -> None:
        self.clock = VirtualClock()
        self.loop = VirtualLoop(self.clock)
        self.costs = costs = CostModel()
        if knows_costs:
            self.learn(cost_s)
        self.batcher = Batcher(
            BatchedVersion(
                ServableId("m", 1),
                SimulatedDevice(self.clock, cost_s),
                {ROW_TO_ROW.name: options or BatchingOptions(8, SIZES)},
                costs,
            ),
            BatchingParameters(max_enqueued_batches=queue_length),
            DeviceServices(self.clock, SILENT_METRICS),
        )
        self.refused = 0

    def learn(self, run_s: Callable[[int], float], runs: int = 10) -> None:
        for rows in SIZES:
            for _ in range(runs):
                self.costs.learn(ROW_TO_ROW.name, rows, run_s(rows))

    def send(self, at_s: float, timeout_s: float = 1e6, rows: int = 1, priority: Priority = Priority.HIGH) -> None:
        self.clock.at(at_s, self._send, at_s + timeout_s, rows, priority)

    def send_for(self, seconds: float, rate: float, timeout_s: float = 1e6) -> None:
        for number in range(round(seconds * rate)):
            self.send(number / rate, timeout_s)

    def _send(self, due_s: float, rows: int, priority: Priority) -> None:
        inputs = {"x": np.zeros((rows, 1), np.float32)}
        future = self.loop.create_future()
        task = Task(ROW_TO_ROW.name, ("y",), inputs, rows, Deadline(due_s), future, shareable=True, priority=priority)
        try:
            self.batcher.submit(task)
        except (TooLate, Unavailable, InvalidArgument):
            self.refused += 1

    def run(self) -> DemandTotals:
        try:
            self.clock.run()
        finally:
            self.batcher.stop()
        return self.batcher.demand.totals()


@pytest.mark.parametrize("load", [0.25, 0.5, 1.0, 4.0])
@pytest.mark.parametrize(
    "traffic",
    [
        pytest.param(Traffic, id="unlimited queue"),
        pytest.param(partial(Traffic, queue_length=2), id="short queue"),
        pytest.param(partial(Traffic, BatchingOptions(8, SIZES, objective=LatencyObjective(0.25))), id="objective"),
    ],
)
def test_the_rate_of_demand_is_the_load(traffic: type[Traffic], load: float) -> None:
    played = traffic()
    played.send_for(10.0, load * CAPACITY)
    assert played.run().high_s == pytest.approx(10.0 * load, rel=0.01)


def test_refused_requests_count() -> None:
    traffic = Traffic()
    traffic.send_for(10.0, 4 * CAPACITY, timeout_s=0.3)
    assert traffic.run().high_s == pytest.approx(40.0, rel=0.01)
    assert traffic.refused > 2000


def test_requests_that_no_server_can_answer_do_not_count() -> None:
    traffic = Traffic()
    # The device is busy with a request of low priority, so that the batcher refuses the others.
    traffic.send(0.0, priority=Priority.LOW)
    for _ in range(100):
        traffic.send(0.01, timeout_s=cost_s(1) / 2)
        traffic.send(0.01, rows=9)
    totals = traffic.run()
    assert totals.high_s == 0.0
    assert totals.low_s == pytest.approx(FULL_S / 8)
    assert traffic.refused == 200


def test_refusals_by_slowed_runs_count() -> None:
    # A neighbour slows the device: by the mean, not even a request alone is in time.
    traffic = Traffic(BatchingOptions(8, SIZES, objective=LatencyObjective(0.09)))
    traffic.learn(lambda rows: 3 * cost_s(rows), runs=300)
    for _ in range(100):
        traffic.send(0.0)
    assert traffic.run().requests == 100
    assert traffic.refused > 90


@pytest.mark.parametrize("priority", Priority)
def test_the_price_follows_the_measured_runs(priority: Priority) -> None:
    traffic = Traffic(knows_costs=False)
    traffic.learn(lambda rows: 10 * cost_s(rows))
    for number in range(2000):
        traffic.send(number * 0.2, rows=8, priority=priority)
    assert traffic.run().mean_s == pytest.approx(FULL_S, rel=0.02)


def test_an_objective_limits_the_batches_that_a_full_load_uses() -> None:
    # Of two batches, only those of 1 row can both be in time, and those of 4 rows answer most in 0.1 s.
    traffic = Traffic(BatchingOptions(8, SIZES, objective=LatencyObjective(0.09)))
    traffic.send(0.0)
    assert traffic.run().high_s == pytest.approx(cost_s(4) / 4)


@pytest.mark.parametrize(("rows", "price_s"), [(2, FULL_S / 4), (3, FULL_S / 2), (5, FULL_S), (8, FULL_S)])
def test_a_request_that_leaves_rows_empty_counts_with_them(rows: int, price_s: float) -> None:
    traffic = Traffic()
    traffic.send(0.0, rows=rows)
    assert traffic.run().high_s == pytest.approx(price_s)


def test_a_request_that_may_be_cut_counts_by_row() -> None:
    traffic = Traffic(BatchingOptions(16, (*SIZES, 16), max_execution_batch_size=8))
    traffic.send(0.0, rows=12)
    assert traffic.run().high_s == pytest.approx(FULL_S * 12 / 8)


def test_a_batch_without_known_cost_counts_with_its_time() -> None:
    traffic = Traffic(knows_costs=False)
    traffic.send(0.0)
    assert traffic.run().high_s == pytest.approx(cost_s(1))


def test_requests_that_are_refused_unread_count_as_the_mean() -> None:
    demand = Demand(threads=2)
    demand.refused_unread(Priority.HIGH)
    assert demand.totals() == DemandTotals()
    demand.arrived(0.2, Priority.HIGH)
    demand.refused_unread(Priority.LOW)
    # Two batches run at a time, so each second of the device is half a second of all that it can do.
    assert demand.totals() == DemandTotals(0.1, 0.1, 2, 0.1)


def test_requests_refused_before_they_are_decoded_count() -> None:
    traffic = Traffic()
    traffic.send_for(1.0, 4 * CAPACITY, timeout_s=0.3)

    def check() -> None:
        # The first is possible on an idle server, and the second is not.
        for timeout_s in (cost_s(1) * 1.01, cost_s(1) / 2):
            with pytest.raises(TooLate):
                traffic.batcher.refusals.check(ROW_TO_ROW.name, Deadline(traffic.clock.monotonic_s() + timeout_s))

    traffic.clock.at(0.9999, check)
    assert traffic.run().high_s == pytest.approx(321 * FULL_S / 8, rel=1e-6)
