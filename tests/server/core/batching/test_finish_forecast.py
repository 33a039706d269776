"""A forecast decides as the batcher that made it, at the same moment, and later never refuses more than its work."""

import pickle
import random

import pytest

from tests.server.core.batching.test_batching_overload import Traffic
from tests.support.virtual_time import ROW_TO_ROW
from tpuserve_server.core.batching.finish_forecast import FinishForecast, waits
from tpuserve_server.core.deadline import Deadline
from tpuserve_server.core.errors import TooLate
from tpuserve_server.core.priority import Priority
from tpuserve_server.core.types import ServableId

NAME = ROW_TO_ROW.name
TIMEOUTS_S = (0.1, 0.7, 1.3, 2.0, 3.1, 4.7, 8.0, 20.0)


@pytest.mark.parametrize("seed", range(5))
def test_a_forecast_decides_as_the_batcher(seed: int) -> None:
    chance = random.Random(seed)
    traffic = Traffic()
    decisions = set()

    def compare() -> None:
        queue, now_s = traffic.batcher._queue, traffic.clock.monotonic_s()
        forecast = pickle.loads(pickle.dumps(traffic.batcher.refusals.forecast()))
        for timeout_s in TIMEOUTS_S:
            deadline = Deadline(now_s + timeout_s)
            for priority in Priority:
                found = []
                for check in (queue.check_deadline, forecast.check):
                    try:
                        found.append(check(NAME, deadline, priority, now_s))
                    except TooLate as error:
                        found.append((str(error), error.retry_after_s))
                assert found[0] == found[1]
                decisions.add(found[0] is None)
            assert forecast.lateness_s(deadline, now_s) == queue.lateness_s(deadline, now_s)

    for _ in range(30):
        priority = chance.choice(list(Priority))
        traffic.send(chance.uniform(0, 6), chance.choice([*TIMEOUTS_S, float("inf")]), priority)
    for at_s in range(9):
        traffic.clock.at(float(at_s), compare)
    traffic.run()
    assert decisions == {True, False}


def forecast(*, free_s: float = 11.0, waiting_s: float = 2.0) -> FinishForecast:
    runs_s = {NAME: 1.0}
    queued = waits([(10.5, waiting_s)] if waiting_s else [])
    return FinishForecast(ServableId("m", 1), 10.0, 1, free_s, 0.0, (runs_s, runs_s), 1.0, (queued, ()))


def test_the_device_works_on_while_a_forecast_ages() -> None:
    deadline = Deadline(13.0)
    with pytest.raises(TooLate, match=r"in 4000\.0 ms, later"):
        forecast().check(NAME, deadline, Priority.HIGH, 10.0)
    with pytest.raises(TooLate, match=r"in 2500\.0 ms, later"):
        forecast().check(NAME, deadline, Priority.HIGH, 11.5)
    # Everything that waited has run by then, so the device is idle.
    forecast().check(NAME, Deadline(13.1), Priority.HIGH, 13.05)


def test_an_idle_device_and_unknown_or_excluded_signatures_refuse_nothing() -> None:
    forecast(free_s=0.0, waiting_s=0.0).check(NAME, Deadline(10.1), Priority.HIGH, 10.05)
    forecast().check("has_objective", Deadline(10.1), Priority.HIGH, 10.05)


def test_a_long_queue_is_described_by_few_waits_that_are_never_later() -> None:
    batches = [(float(order), 1.0) for order in range(1000)]
    random.Random(0).shuffle(batches)
    found = waits(batches)
    assert len(found) <= 64
    assert found[-1] == (999.0, 1000.0)
    assert all(seconds == order_s + 1 for order_s, seconds in found)
