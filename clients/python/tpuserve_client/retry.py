"""Retry policy: which failures to retry, when, and how many. Pure: no clock, no sleep.

The client retries Unavailable. It retries ResourceExhausted only with a retry hint: the server has not run the request,
and expects room later. The policy follows gRPC's client retries (gRPC proposal A6): exponential backoff, the server's
pushback, and a token bucket that stops retries while most calls fail.

Full jitter (a wait drawn uniformly from zero to the backoff) spreads the requests of many clients best:
https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
"""

import math
import threading
from dataclasses import dataclass
from typing import Final

from tpuserve_client.errors import InvalidArgument, ResourceExhausted, TpuserveError, Unavailable
from tpuserve_client.limits import as_number
from tpuserve_client.names import shown

# Executions of a request whose connection ended before the response arrived. A request that makes servers fail must
# not visit each of them.
_MAX_EXECUTIONS: Final = 2


@dataclass(frozen=True, slots=True)
class Retry:
    """Number and timing of attempts. `max_attempts` includes the first attempt: 1 disables retries.

    The server's retry hint is a lower bound of the wait. The client reports the error instead of obeying a hint longer
    than `max_pushback_s` seconds, and after gRPC's "do not retry" (a negative pushback).

    `idempotent` allows the client to send a request again, once, if the connection ended after the request was sent:
    the server may then execute it twice. That is safe for models without state. Set it to False for models whose
    predictions change variables.

    `budget_tokens` and `budget_ratio` are the `maxTokens` and `tokenRatio` of gRPC's retry throttling: each failed
    attempt takes one token, each success returns `budget_ratio` tokens, and the client retries only while more than
    half of the tokens are there. All calls of a client share the tokens. `budget_tokens=math.inf` disables the budget.

    Raises InvalidArgument for numbers out of range.
    """

    max_attempts: int = 4
    initial_backoff_s: float = 0.1
    max_backoff_s: float = 5.0
    multiplier: float = 2.0
    max_pushback_s: float = 30.0
    idempotent: bool = True
    budget_tokens: float = 100.0
    budget_ratio: float = 0.1

    def __post_init__(self) -> None:
        for name in ("max_attempts", "initial_backoff_s", "max_backoff_s", "multiplier", "max_pushback_s"):
            _check_number(name, getattr(self, name))
        _check_number("budget_ratio", self.budget_ratio)
        if self.budget_tokens != math.inf:
            _check_number("budget_tokens", self.budget_tokens)
        if self.max_attempts < 1:
            raise InvalidArgument(f"max_attempts must be at least 1, not {self.max_attempts}.")
        if self.max_backoff_s < self.initial_backoff_s or self.multiplier < 1:
            raise InvalidArgument(f"The backoff must not decrease: {self}.")

    def backoff_s(self, attempt: int, jitter: float) -> float:
        """Return the wait in seconds after attempt number `attempt` (from 1), with `jitter` drawn uniformly from [0,
        1).
        """
        if not self.initial_backoff_s:
            return 0.0
        try:
            grown = self.initial_backoff_s * float(self.multiplier) ** (attempt - 1)
        except OverflowError:  # a one-hour wait can make thousands of attempts
            grown = self.max_backoff_s
        return jitter * min(self.max_backoff_s, grown)

    def wait_s(
        self, error: TpuserveError, attempt: int, executions: int, jitter: float, remaining_s: float | None
    ) -> float | None:
        """Return the seconds to wait before the next attempt, or None to stop.

        `executions` counts the attempts that the server may have executed, this one included. `remaining_s` is the time
        to the caller's deadline, or None without one. If the wait would pass the deadline, the client stops at once and
        reports the error.
        """
        if attempt >= self.max_attempts or not is_retryable(error):
            return None
        if error.may_have_run and (not self.idempotent or executions >= _MAX_EXECUTIONS):
            return None
        hint = error.retry_after_s or 0.0
        if hint > self.max_pushback_s:
            return None
        wait = max(self.backoff_s(attempt, jitter), hint)
        return wait if remaining_s is None or wait < remaining_s else None


class RetryBudget:
    """The tokens of gRPC's retry throttling (gRPC proposal A6). Safe to share between threads."""

    def __init__(self, retry: Retry) -> None:
        self._max = retry.budget_tokens
        self._ratio = retry.budget_ratio
        self._tokens = self._max
        self._lock = threading.Lock()

    def count_success(self) -> None:
        """Return `budget_ratio` of a token to the bucket."""
        if self._tokens >= self._max:  # the usual case, without the lock
            return
        with self._lock:
            self._tokens = min(self._max, self._tokens + self._ratio)

    def count_failure(self) -> bool:
        """Take one token for a retryable failure. Return whether a retry is within the budget."""
        with self._lock:
            self._tokens = max(0.0, self._tokens - 1)
            return self._tokens > self._max / 2 or self._max == math.inf


def is_retryable(error: TpuserveError) -> bool:
    """Return whether the same request may succeed later."""
    if error.forbids_retry:
        return False
    if isinstance(error, ResourceExhausted):
        return error.retry_after_s is not None
    return isinstance(error, Unavailable)


def _check_number(name: str, value: object) -> None:
    if not 0.0 <= as_number(value) < math.inf:  # NaN, too
        raise InvalidArgument(f"{name} must be a finite number of at least 0, not {shown(value)}.")
