"""Tests for the limit of a rate."""

from tpuserve_server.observe.requests.rate_limit import RateLimit


def test_a_burst_of_one_second_is_admitted_at_first() -> None:
    limit = RateLimit(3.0)
    assert [limit.admits(5.0) for _ in range(5)] == [True, True, True, False, False]


def test_tokens_return_at_the_rate_and_never_exceed_one_second() -> None:
    limit = RateLimit(2.0)
    assert [limit.admits(now_s) for now_s in (0.0, 0.0, 0.0, 0.5, 0.5)] == [True, True, False, True, False]
    assert [limit.admits(100.0) for _ in range(3)] == [True, True, False]
