import asyncio
from dataclasses import replace

import numpy as np
import pytest

from tests.support.virtual_time import ROW_TO_ROW
from tpuserve_server.core.batching.backlog import Backlog
from tpuserve_server.core.batching.cost_model import CostModel
from tpuserve_server.core.batching.device_queue import DeadlineCheck, DeviceQueue, HostDelay
from tpuserve_server.core.batching.objective import ObjectivePolicy
from tpuserve_server.core.batching.parameters import BatchingOptions, LatencyObjective
from tpuserve_server.core.batching.task import Task
from tpuserve_server.core.terms.deadline import Deadline
from tpuserve_server.core.terms.errors import TooLate
from tpuserve_server.core.terms.priority import Priority
from tpuserve_server.core.terms.types import ServableId

SIZES = (1, 2, 4, 8)
OBJECTIVE_S = 20.0


def learned() -> CostModel:
    """Return costs in which 8 rows take 9 s, with hardly any variance."""
    costs = CostModel()
    for rows in SIZES:
        for _ in range(20):
            costs.learn("f", rows, 5.0 + rows / 2)
    return costs


class Bench:
    """A policy for one device, whose events and times come from a test."""

    def __init__(self, costs: CostModel | None = None, devices: int = 1) -> None:
        options = BatchingOptions(8, SIZES, objective=LatencyObjective(OBJECTIVE_S))
        self._costs = costs or learned()
        self._device = DeviceQueue(devices)
        deadlines = DeadlineCheck(ServableId("m", 1), self._device, HostDelay())
        self.policy = ObjectivePolicy("f", options, self._costs, deadlines)
        signatures = {"f": replace(ROW_TO_ROW, name="f")}
        self.backlog = Backlog(signatures, {"f": options}, {"f": self.policy}, 100, self._costs, deadlines, [])

    def take(self, tasks: list[Task], now_s: float) -> None:
        cost = self._costs.cost("f", sum(task.rows for task in tasks))
        assert cost is not None
        self._device.take(0, tasks, tasks[0].enqueued_s, now_s, cost.mean_s)
        self.policy.taken(tasks)

    def answer(self, now_s: float) -> list[float]:
        return list(self.policy.answered(self._device.end(0, now_s).tasks, 0.0, now_s))

    def drop(self) -> None:
        self._device.drop(0)

    def task(
        self, now_s: float, rows: int = 1, deadline: Deadline | None = None, priority: Priority = Priority.HIGH
    ) -> Task:
        future = asyncio.get_running_loop().create_future()
        inputs = {"x": np.zeros((rows, 1), np.float32)}
        task = Task("f", ("y",), inputs, rows, deadline or Deadline.never(), future, shareable=True, priority=priority)
        task.enqueued_s = now_s
        return task

    def admits(self, task: Task, rows_ahead: int = 0, oldest_s: float = 0.0, others_s: float = 0.0) -> bool:
        try:
            self.policy.check(task, rows_ahead, oldest_s, others_s)
        except TooLate:
            return False
        return True


async def test_a_lone_request_on_an_idle_device_is_admitted() -> None:
    bench = Bench()
    task = bench.task(100.0)
    assert bench.admits(task)
    assert task.predicted_s == pytest.approx(105.5)


async def test_who_shares_a_batch_is_promised_the_time_that_one_of_the_planned_size_takes() -> None:
    bench = Bench()
    task = bench.task(100.0)
    assert bench.admits(task, 1, 100.0)
    assert task.predicted_s == pytest.approx(109.0)


async def test_an_idle_device_takes_a_request_that_is_in_time_on_average() -> None:
    costs = CostModel()
    for run_s in [6.0, 18.0] * 20:
        for rows in SIZES:
            costs.learn("f", rows, run_s)
    bench = Bench(costs)
    assert bench.admits(bench.task(100.0))
    assert not bench.admits(bench.task(100.0), 1, 100.0)


async def test_who_comes_while_a_batch_runs_has_time_for_the_next_but_not_for_the_one_after() -> None:
    bench = Bench()
    bench.take([bench.task(100.0, rows=8)], 100.0)
    assert bench.admits(bench.task(100.0))
    assert bench.admits(bench.task(101.0), 7, 100.0)
    assert not bench.admits(bench.task(101.0), 8, 100.0)
    # 7 s later the running batch is nearly finished.
    assert bench.admits(bench.task(108.0), 8, 100.0)


async def test_other_batches_that_wait_are_ahead() -> None:
    bench = Bench()
    assert bench.admits(bench.task(100.0), others_s=9.0)
    assert not bench.admits(bench.task(100.0), others_s=12.0)
    assert Bench(devices=2).admits(bench.task(100.0), others_s=12.0)


async def test_the_refusal_says_when_it_would_be_done_and_when_to_try_again() -> None:
    bench = Bench()
    bench.take([bench.task(100.0, rows=8)], 100.0)
    message = r"would finish this request in 27\d{3}\.\d ms, later than its objective of 20000 ms"
    with pytest.raises(TooLate, match=message) as raised:
        bench.policy.check(bench.task(100.0), 8, 100.0, 0.0)
    assert "(8 rows are queued before it)" in raised.value.message
    assert raised.value.retry_after_s == pytest.approx(7.0, abs=0.5)


async def test_a_request_that_cannot_meet_its_own_deadline_is_refused() -> None:
    bench = Bench()
    assert bench.admits(bench.task(100.0, deadline=Deadline(110.0)))
    with pytest.raises(TooLate, match=r"later than the request's deadline in 5000\.0 ms"):
        bench.policy.check(bench.task(100.0, deadline=Deadline(105.0)), 0, 0.0, 0.0)


async def test_low_priority_has_no_promise_and_is_never_refused() -> None:
    bench = Bench()
    tasks = [bench.task(100.0, rows=8, priority=Priority.LOW) for _ in range(5)]
    for task in tasks:
        bench.backlog.add(task, 1000.0)
    assert [task.predicted_s for task in tasks] == [0.0] * 5
    with pytest.raises(TooLate):
        bench.backlog.add(bench.task(100.0))


async def test_a_batch_of_low_priority_leaves_time_for_one_of_high() -> None:
    bench = Bench()
    tasks = [bench.task(100.0 - wait, priority=Priority.LOW) for wait in range(20, 0, -1)]
    assert bench.policy.choose(tasks, 200.0) == 8
    slow = CostModel()
    for rows in SIZES:
        slow.learn("f", rows, 3.0 * rows)
    assert Bench(slow).policy.choose(tasks, 200.0) == 2


async def test_nobody_is_refused_while_nothing_is_known_of_costs() -> None:
    bench = Bench(CostModel())
    assert bench.admits(bench.task(100.0), 1000, 0.0)
    assert bench.policy.choose([bench.task(100.0) for _ in range(5)], 200.0) == 5


async def test_errors_of_predictions_are_told_when_a_batch_has_been_answered() -> None:
    bench = Bench()
    admitted, unpromised = bench.task(100.0), bench.task(100.0, priority=Priority.LOW)
    assert bench.admits(admitted)
    bench.backlog.add(unpromised)
    bench.take([admitted, unpromised], 100.0)
    assert bench.answer(110.5) == pytest.approx([5.0])


async def test_the_margin_widens_when_answers_are_late() -> None:
    bench = Bench()
    just_in_time = bench.task(100.0), 8, 93.0
    bench.take([bench.task(92.0, rows=8)], 92.0)
    assert bench.admits(*just_in_time)
    bench.answer(101.0)
    for _ in range(3):
        bench.take([bench.task(70.0, rows=8)], 92.0)
        bench.answer(92.0)
    bench.take([bench.task(92.0, rows=8)], 92.0)
    assert not bench.admits(*just_in_time)


async def test_what_the_host_takes_of_the_objective_is_learned_from_answers_that_went_out_late() -> None:
    bench = Bench()
    just_in_time = bench.task(100.0), 8, 93.0
    bench.take([bench.task(92.0, rows=8)], 92.0)
    assert bench.admits(*just_in_time)
    for _ in range(6):
        bench.policy.record_latency(OBJECTIVE_S + 1.0)
    assert bench.policy.host_s == pytest.approx(3.0, rel=0.01)
    with pytest.raises(TooLate, match=r"later than its objective of 20000 ms minus 29\d\d\.\d ms for the host"):
        bench.policy.check(*just_in_time, 0.0)
    for _ in range(1300):
        bench.policy.record_latency(OBJECTIVE_S)
    assert bench.admits(*just_in_time)


async def test_while_a_free_device_refuses_one_in_a_hundred_is_run_to_see() -> None:
    bench = Bench()
    hurried = [bench.task(now_s, rows=8, deadline=Deadline(now_s + 8.0)) for now_s in range(100, 3000, 10)]
    admitted = [task.enqueued_s for task in hurried if bench.admits(task)]
    # Each batch has a predicted cost of 9 s.
    assert admitted == [pytest.approx(100 + 900 * count, abs=20 * count) for count in (1, 2, 3)]


async def test_a_busy_device_learns_without_trials() -> None:
    bench = Bench()
    bench.take([bench.task(100.0, rows=8)], 100.0)
    assert not any(bench.admits(bench.task(now_s, 8, Deadline(now_s + 8.0))) for now_s in range(100, 3000, 10))


async def test_costs_that_were_too_high_are_put_right_by_trials() -> None:
    costs = learned()
    for _ in range(500):
        for rows in SIZES:
            costs.learn("f", rows, 50.0)
    bench, now_s = Bench(costs), 100.0
    assert not bench.admits(bench.task(now_s, rows=8))
    for _ in range(20_000):
        now_s += 10.0
        task = bench.task(now_s, rows=8)
        if bench.admits(task):
            bench.take([task], now_s)
            costs.learn("f", 8, 9.0)
            now_s += 9.0
            bench.answer(now_s)
    assert bench.admits(bench.task(now_s + 1, rows=8))
    assert bench.admits(bench.task(now_s + 2, rows=8))


async def test_a_request_for_several_batches_is_as_late_as_its_last() -> None:
    bench = Bench()
    two, three = bench.task(100.0, rows=16), bench.task(100.0, rows=17)
    assert bench.admits(two)
    assert two.predicted_s == pytest.approx(118.0)
    assert not bench.admits(three)
    # Only the running batch is ahead of the request.
    bench.take([bench.task(92.0, rows=8)], 92.0)
    assert bench.admits(bench.task(96.0, rows=8))
    assert not bench.admits(bench.task(96.0, rows=16))


async def test_what_is_predicted_of_a_request_is_told_of_its_last_part() -> None:
    bench = Bench()
    task = bench.task(100.0, rows=16)
    assert bench.admits(task)
    assert [part.predicted_s for part in task.split([8, 8])] == [0.0, task.predicted_s]


async def test_a_batch_that_was_dropped_leaves_the_device_free() -> None:
    bench = Bench()
    bench.take([bench.task(100.0, rows=8)], 100.0)
    assert not bench.admits(bench.task(100.0, deadline=Deadline(112.0)))
    bench.drop()
    assert bench.admits(bench.task(100.0, deadline=Deadline(112.0)))


async def test_costs_that_were_too_high_are_tried_beside_others_that_keep_the_device_busy() -> None:
    costs = learned()
    for _ in range(500):
        for rows in SIZES:
            costs.learn("f", rows, 50.0)
    bench = Bench(costs)
    bench.take([bench.task(100.0, rows=8)], 100.0)
    admitted = [now_s for now_s in range(100, 20_000, 10) if bench.admits(bench.task(now_s), others_s=5.0)]
    assert admitted == [pytest.approx(100 + 5010 * count, abs=60 * count) for count in (1, 2, 3)]
