"""Tests for the retry decision, as a table: no clock, no sleep."""

import math
from typing import Any

import pytest

from tpuserve_client.errors import (
    Code,
    DeadlineExceeded,
    InvalidArgument,
    ResourceExhausted,
    TpuserveError,
    Unavailable,
    from_code,
)
from tpuserve_client.retry import Retry, RetryBudget

RETRY = Retry(max_attempts=5, initial_backoff_s=0.1, max_backoff_s=0.5, multiplier=2.0)


@pytest.mark.parametrize(("attempt", "longest"), [(1, 0.1), (2, 0.2), (3, 0.4), (4, 0.5), (9, 0.5)])
@pytest.mark.parametrize("jitter", [0.0, 0.25, 0.999])
def test_backoff_is_drawn_from_zero_to_a_growing_bound(attempt: int, longest: float, jitter: float) -> None:
    assert RETRY.backoff_s(attempt, jitter) == pytest.approx(jitter * longest)


@pytest.mark.parametrize("multiplier", [1.0, 2.0, 2, 1e300])
def test_backoff_stays_bounded_however_long_the_wait(multiplier: float) -> None:
    assert Retry(max_backoff_s=0.1, multiplier=multiplier).backoff_s(5000, 0.5) == pytest.approx(0.05)
    assert Retry(initial_backoff_s=0.0, multiplier=multiplier).backoff_s(5000, 0.5) == 0.0


@pytest.mark.parametrize("code", sorted(set(Code) - {Code.OK, Code.UNAVAILABLE}))
def test_nothing_but_unavailable_is_tried_again_unasked(code: Code) -> None:
    assert RETRY.wait_s(from_code(code, ""), attempt=1, executions=0, jitter=0.5, remaining_s=None) is None


@pytest.mark.parametrize(
    ("error", "attempt", "remaining_s", "wait_s"),
    [
        (Unavailable(""), 1, None, 0.05),
        (Unavailable(""), 4, None, 0.25),
        (Unavailable(""), 5, None, None),  # was the last attempt
        (Unavailable(""), 1, 0.06, 0.05),
        (Unavailable(""), 1, 0.05, None),  # no time left for the attempt
        (Unavailable("", retry_after_s=3.0), 1, None, 3.0),
        (Unavailable("", retry_after_s=0.01), 1, None, 0.05),  # the server's hint is only a lower bound
        (Unavailable("", retry_after_s=3.0), 1, 2.0, None),
        (ResourceExhausted("", retry_after_s=3.0), 1, None, 3.0),
        (ResourceExhausted("", retry_after_s=0.0), 1, None, 0.05),
        (ResourceExhausted("", retry_after_s=3.0), 5, None, None),
        (DeadlineExceeded("", retry_after_s=3.0), 1, None, None),
    ],
)
def test_wait(error: TpuserveError, attempt: int, remaining_s: float | None, wait_s: float | None) -> None:
    got = RETRY.wait_s(error, attempt, executions=0, jitter=0.5, remaining_s=remaining_s)
    assert got == (None if wait_s is None else pytest.approx(wait_s))


def test_forbidden_retry_and_a_long_hint_end_the_call() -> None:
    policy = Retry(max_pushback_s=30.0)
    for error in (Unavailable("", forbids_retry=True), Unavailable("", retry_after_s=30.1)):
        assert policy.wait_s(error, attempt=1, executions=0, jitter=0.5, remaining_s=None) is None
    allowed = Unavailable("", retry_after_s=30.0)
    assert policy.wait_s(allowed, attempt=1, executions=0, jitter=0.5, remaining_s=None) == 30.0


def test_request_that_may_have_run_is_repeated_once_if_it_is_idempotent() -> None:
    cut = Unavailable("", may_have_run=True)
    waits = [RETRY.wait_s(cut, attempt=n, executions=n, jitter=0.0, remaining_s=None) for n in (1, 2)]
    assert waits == [0.0, None]
    policy = Retry(idempotent=False)
    assert policy.wait_s(cut, attempt=1, executions=1, jitter=0.0, remaining_s=None) is None
    assert policy.wait_s(Unavailable(""), attempt=1, executions=0, jitter=0.0, remaining_s=None) == 0.0


def test_budget_stops_retries_at_half_of_the_tokens_until_calls_succeed() -> None:
    budget = RetryBudget(Retry(budget_tokens=10, budget_ratio=0.5))
    assert [budget.count_failure() for _ in range(6)] == [True, True, True, True, False, False]
    for _ in range(6):
        budget.count_success()
    assert budget.count_failure()


def test_infinite_budget_never_stops_retries() -> None:
    budget = RetryBudget(Retry(budget_tokens=math.inf))
    assert all(budget.count_failure() for _ in range(1000))


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"max_attempts": "3"},
        {"initial_backoff_s": -1.0},
        {"max_backoff_s": 0.01},
        {"max_backoff_s": math.nan},
        {"multiplier": 0.5},
        {"max_pushback_s": math.inf},
        {"budget_tokens": None},
    ],
)
def test_senseless_policy_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"max_|backoff|budget"):
        Retry(**options)
