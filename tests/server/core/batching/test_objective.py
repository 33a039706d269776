import random

import pytest

from tpuserve_server.core.batching.objective import HostAllowance, Sizes, capacity, choose_rows, choose_target


def sizes(t0_s: float, per_row_s: float, largest: int, spread: float = 0.0) -> Sizes:
    rows = tuple(1 << power for power in range(largest.bit_length()))
    means = tuple(t0_s + per_row_s * size for size in rows)
    return Sizes(rows, means, tuple(spread * mean for mean in means))


# 1 row takes 6 s, 8 take 13, 16 take 21, 64 take 69.
SLOPED = sizes(5.0, 1.0, 64)


def test_capacity_is_that_of_the_largest_batch_of_which_two_fit_the_objective() -> None:
    assert capacity(SLOPED, 26) == 8 / 13
    assert capacity(SLOPED, 25.9) == 4 / 9
    assert capacity(SLOPED, 11) == 0


@pytest.mark.parametrize(
    ("rate", "rows"),
    [
        # Batches of 8 are always in time, even at low rates.
        (0.0, 8),
        (0.3, 8),
        (8 / 13, 8),
        # Too few arrive in the 5 s that batches of 16 allow.
        (1.5, 8),
        # 11 rows in 21 s are worse than 8 in 13.
        (2.2, 8),
        # 16 rows in 21 s are better.
        (3.3, 16),
        # Larger batches always exceed the objective.
        (1000.0, 16),
    ],
)
def test_larger_batches_are_planned_when_enough_come_to_be_worth_refusing_some(rate: float, rows: int) -> None:
    assert SLOPED.rows[choose_target(SLOPED, 26.0, 0.0, rate)] == rows


def test_costs_that_vary_leave_room_for_smaller_batches() -> None:
    # 13 s plus two spreads of 2.6 s: two batches of 8 rows no longer fit.
    assert SLOPED.rows[choose_target(sizes(5.0, 1.0, 64, spread=0.2), 26.0, 2.0, 0.3)] == 4


def test_an_objective_below_every_batch_plans_the_smallest() -> None:
    assert choose_target(SLOPED, 3.0, 0.0, 10.0) == 0


@pytest.mark.parametrize(
    ("waited_s", "rows"),
    [
        # Per row, 8 cost less than a half-empty 16. All are in time.
        ([5.0] * 9, 8),
        # The same for these 12, but the 4 left behind would be late.
        ([3.0] * 12, 8),
        ([4.5] * 12, 16),
        # 16 would make the first late. One late is better than seven.
        ([13.0] + [4.0] * 11, 8),
        # All are late, so the cheapest size wins.
        ([90.0] * 12, 8),
        ([90.0] * 15, 16),
        # Late rows do not make batches smaller.
        ([90.0] * 8 + [4.0] * 8, 16),
    ],
)
def test_rows_to_run(waited_s: list[float], rows: int) -> None:
    enqueued_s = [100.0 - waited for waited in waited_s]
    assert choose_rows(SLOPED, 26.0, 3, 100.0, enqueued_s, [1] * len(enqueued_s)) == rows


def test_requests_of_several_rows_stay_whole() -> None:
    # 6 + 6 rows: a batch of 8 holds only the first request.
    assert choose_rows(SLOPED, 1000.0, 3, 100.0, [99.0, 99.0], [6, 6]) == 16
    # 7 + 7 + 2 rows fill all of 16.
    assert choose_rows(SLOPED, 1000.0, 3, 100.0, [99.0] * 3, [7, 7, 2]) == 16


def test_a_request_larger_than_every_size_runs() -> None:
    assert choose_rows(SLOPED, 26.0, 3, 100.0, [99.0], [100]) == 100


def test_what_others_run_in_between_is_not_left_out_when_rows_are_left_behind() -> None:
    waited_s, rows = [3.0] * 9, [1] * 9
    # The request that 8 leave behind runs 13 + 6 s later, which is in time. Another 5 s would make it late.
    assert choose_rows(SLOPED, 26.0, 3, 100.0, [100.0 - wait for wait in waited_s], rows) == 8
    assert choose_rows(SLOPED, 26.0, 3, 100.0, [100.0 - wait for wait in waited_s], rows, 5.0) == 16


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
