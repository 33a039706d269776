"""Tests of the limit of repeats. The time is a plain number."""

import logging

from tpuserve_server.observe.logs.background import EventKind, RepeatLimit, Suppressed

KIND = EventKind("a", logging.ERROR, "failed %s")


def admitted(limit: RepeatLimit, kind: EventKind, times: int, now_s: float = 0.0) -> int:
    return sum(limit.admits(kind, now_s) for _ in range(times))


def test_a_few_events_of_each_kind_pass_in_each_period() -> None:
    limit = RepeatLimit(most=10, period_s=60.0)
    assert admitted(limit, KIND, 422) == 10
    assert admitted(limit, KIND._replace(logger="b"), 3) == 3
    assert admitted(limit, KIND._replace(level=logging.WARNING), 3) == 3
    assert limit.take_ended(59.9) == []
    assert limit.take_ended(60.0) == [Suppressed(KIND, 412, 60.0)]
    assert admitted(limit, KIND, 1, now_s=60.0) == 1
    assert limit.take_all() == []


def test_the_next_summary_is_due_at_the_first_end_of_a_period_with_repeats() -> None:
    limit = RepeatLimit(most=1, period_s=60.0)
    limit.admits(KIND, 0.0)
    assert limit.ends_s() is None
    admitted(limit, KIND._replace(logger="b"), 2, now_s=5.0)
    assert limit.ends_s() == 65.0
    limit.admits(KIND, 6.0)
    assert limit.ends_s() == 60.0


def test_memory_is_bounded_and_no_count_is_lost() -> None:
    limit = RepeatLimit(most=1, period_s=60.0)
    admitted(limit, KIND, 5)
    for number in range(10_000):
        assert limit.admits(KIND._replace(template=str(number)), 1.0)
    assert limit.take_ended(1.0) == [Suppressed(KIND, 4, 60.0)]
    assert limit.take_all() == []
