"""Tests of the real batcher under overload, on virtual time and without an objective."""

import asyncio
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest

from tests.support.virtual_time import ROW_TO_ROW, SILENT_METRICS, SimulatedDevice, VirtualClock, VirtualLoop
from tpuserve_server.core.batching.batcher import Batcher
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.parameters import BatchingOptions, BatchingParameters
from tpuserve_server.core.batching.services import BatchedVersion, DeviceServices
from tpuserve_server.core.batching.task import Outcome, Task
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import ServingError, TooLate
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import ServableId

SIZES = (1, 2, 4)


def cost_s(rows: int) -> float:
    """Return 2 s for four rows, so that the device answers two rows a second."""
    return 1.0 + rows / 4


@dataclass
class Run:
    """Times of responses and errors, by the number of the request, and the numbers in the order of the device."""

    done_s: dict[int, float] = field(default_factory=dict)
    errors: dict[int, ServingError] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)


class Traffic:
    """Requests at given times, and the real batcher."""

    def __init__(self, *, knows_costs: bool = True, scale: float = 1.0) -> None:
        self.clock = VirtualClock()
        self.loop = VirtualLoop(self.clock)
        self.found = Run()
        costs = CostModel()
        for rows in SIZES if knows_costs else ():
            for _ in range(10):
                costs.learn(ROW_TO_ROW.name, rows, scale * cost_s(rows))
        self.batcher = Batcher(
            BatchedVersion(
                ServableId("m", 1),
                SimulatedDevice(self.clock, lambda rows: scale * cost_s(rows)),
                {ROW_TO_ROW.name: BatchingOptions(4, SIZES)},
                costs,
            ),
            BatchingParameters(max_enqueued_batches=1000),
            DeviceServices(self.clock, SILENT_METRICS),
        )
        self.number = 0

    def send(self, at_s: float, timeout_s: float = float("inf"), priority: Priority = Priority.HIGH) -> int:
        self.number += 1
        self.clock.at(at_s, self._send, self.number, at_s + timeout_s, priority)
        return self.number

    def run(self) -> Run:
        try:
            self.clock.run()
        finally:
            self.batcher.stop()
        return self.found

    def _send(self, number: int, due_s: float, priority: Priority) -> None:
        future = self.loop.create_future()
        future.add_done_callback(partial(self._end, number))
        inputs = {"x": np.full((1, 1), number, np.float32)}
        task = Task(ROW_TO_ROW.name, ("y",), inputs, 1, Deadline(due_s), future, shareable=True, priority=priority)
        try:
            self.batcher.submit(task)
        except TooLate as error:
            self.found.errors[number] = error

    def _end(self, number: int, future: asyncio.Future[Outcome]) -> None:
        outcome = future.result()
        if isinstance(outcome, ServingError):
            self.found.errors[number] = outcome
            return
        self.found.order.append(number)
        self.found.done_s[number] = self.clock.monotonic_s()


def test_an_idle_device_runs_every_request() -> None:
    traffic = Traffic()
    hopeless = traffic.send(0.0, 0.5)
    assert traffic.run().done_s == {hopeless: 1.25}


def test_a_request_that_would_be_late_is_refused_at_once_with_a_hint() -> None:
    traffic = Traffic()
    running = traffic.send(0.0)
    late, in_time = traffic.send(0.1, 2.0), traffic.send(0.1, 3.0)
    found = traffic.run()
    assert list(found.done_s) == [running, in_time]
    error = found.errors[late]
    assert isinstance(error, TooLate)
    # The running batch ends at 1.25 s and its own at 2.5 s.
    assert error.retry_after_s == pytest.approx(0.4)


def test_unknown_costs_refuse_nothing() -> None:
    traffic = Traffic(knows_costs=False)
    for _ in range(5):
        traffic.send(0.0, 100.0)
    assert len(traffic.run().done_s) == 5


@pytest.mark.parametrize("load", [2, 5, 10])
def test_admitted_requests_are_in_time_and_the_device_stays_full(load: int) -> None:
    traffic = Traffic()
    seconds, timeout_s = 100, 10.0
    due_s = {}
    for index in range(2 * load * seconds):
        at_s = index / (2 * load)
        due_s[traffic.send(at_s, timeout_s)] = at_s + timeout_s
    found = traffic.run()
    good = sum(done_s <= due_s[number] for number, done_s in found.done_s.items())
    assert good >= 0.9 * 2 * seconds
    assert good == len(found.done_s)


def test_a_request_with_an_early_deadline_overtakes_others() -> None:
    traffic = Traffic(scale=0.01)
    running = traffic.send(0.0)
    patient = [traffic.send(0.001) for _ in range(8)]
    # In order of arrival its batch would end at 0.065 s.
    urgent = traffic.send(0.002, 0.05)
    found = traffic.run()
    assert not found.errors
    assert found.order == [running, urgent, *patient]


def test_a_request_does_not_overtake_those_that_have_waited_for_a_second() -> None:
    traffic = Traffic()
    running = traffic.send(0.0)
    patient = [traffic.send(0.1) for _ in range(8)]
    urgent = traffic.send(1.2, 3.0)
    found = traffic.run()
    assert found.order == [running, *patient]
    assert isinstance(found.errors[urgent], TooLate)


def test_a_request_without_a_deadline_is_not_starved() -> None:
    traffic = Traffic()
    for index in range(1000):
        traffic.send(index / 10, 5.0)
    patient = traffic.send(20.0)
    found = traffic.run()
    # A second of patience, the batch that runs then, and its own.
    assert found.done_s[patient] <= 20.0 + 1.0 + 5.0


def test_high_priority_runs_before_low_priority_whatever_the_deadlines() -> None:
    traffic = Traffic()
    traffic.send(0.0)
    low = traffic.send(0.1, 60.0, Priority.LOW)
    high = [traffic.send(0.2, 100.0) for _ in range(8)]
    found = traffic.run()
    assert found.order.index(low) > max(found.order.index(number) for number in high)


def test_low_priority_is_refused_for_the_work_of_high_priority() -> None:
    traffic = Traffic()
    traffic.send(0.0)
    for _ in range(8):
        traffic.send(0.1)
    low = traffic.send(0.2, 5.0, Priority.LOW)
    assert isinstance(traffic.run().errors[low], TooLate)


def test_a_waiting_request_that_can_no_longer_be_in_time_does_not_run() -> None:
    traffic = Traffic()
    traffic.send(0.0)
    # Alone it would end at 2.5 s.
    squeezed = traffic.send(0.1, 2.5)
    for _ in range(7):
        traffic.send(0.2)
    found = traffic.run()
    assert isinstance(found.errors[squeezed], TooLate)
    assert len(found.done_s) == 8


def test_requests_are_checked_before_decoding_once_one_was_refused() -> None:
    traffic = Traffic()
    refused = []

    def ask(timeout_s: float) -> None:
        try:
            traffic.batcher.refusals.check(ROW_TO_ROW.name, Deadline(traffic.clock.monotonic_s() + timeout_s))
        except TooLate:
            refused.append(timeout_s)

    traffic.send(0.0)
    traffic.clock.at(0.1, ask, 2.0)
    traffic.send(0.2, 1.0)
    traffic.clock.at(0.3, ask, 2.1)
    traffic.clock.at(0.3, ask, 3.0)
    traffic.run()
    assert refused == [2.1]
