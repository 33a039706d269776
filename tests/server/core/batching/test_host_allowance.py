import random

import pytest

from tpuserve_server.core.batching.objective import HostAllowance

OBJECTIVE_S = 0.020


def test_as_many_answers_are_late_as_may_be() -> None:
    allowance, drawn = HostAllowance(OBJECTIVE_S, 99.0), random.Random(7)
    late = 0
    for number in range(40_000):
        # The batcher uses all the time that it gets. The host takes a millisecond on average, sometimes several.
        latency_s = OBJECTIVE_S - allowance.seconds + drawn.expovariate(1000.0)
        allowance.record_latency(latency_s)
        late += latency_s > OBJECTIVE_S and number >= 20_000
    assert 0.002 < late / 20_000 < 0.01


def test_nothing_is_kept_where_nothing_is_late() -> None:
    allowance = HostAllowance(OBJECTIVE_S, 99.0)
    for _ in range(1000):
        allowance.record_latency(OBJECTIVE_S)
    assert allowance.seconds == 0.0


def test_a_stall_takes_no_more_than_half_of_the_objective_and_is_forgotten() -> None:
    allowance = HostAllowance(OBJECTIVE_S, 99.0)
    for _ in range(1000):
        allowance.record_latency(1.0)
    assert allowance.seconds == pytest.approx(OBJECTIVE_S / 2)
    for _ in range(5000):
        allowance.record_latency(0.001)
    assert allowance.seconds == 0.0


def test_what_batches_need_is_never_kept() -> None:
    allowance = HostAllowance(OBJECTIVE_S, 99.0)
    for _ in range(1000):
        allowance.record_latency(1.0)
    allowance.cap(0.015)
    assert allowance.seconds == pytest.approx(0.005)
    allowance.record_latency(1.0)
    assert allowance.seconds == pytest.approx(0.005)
    allowance.cap(0.030)
    assert allowance.seconds == 0.0
