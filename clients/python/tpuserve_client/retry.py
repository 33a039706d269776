"""Retry policy: exponential backoff with full jitter. Pure: no clock, no sleep.

The client retries Unavailable. It retries ResourceExhausted only with a retry hint: the server has not run the request,
and expects room later.

Full jitter (a wait drawn uniformly from zero to the backoff) spreads the requests of many clients best:
https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
"""

from dataclasses import dataclass

from tpuserve_client.errors import ResourceExhausted, TpuserveError, Unavailable


@dataclass(frozen=True, slots=True)
class Retry:
    """Number and timing of attempts. `max_attempts` includes the first attempt: 1 disables retries."""

    max_attempts: int = 4
    initial_backoff_s: float = 0.1
    max_backoff_s: float = 5.0
    multiplier: float = 2.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts must be at least 1, not {self.max_attempts}")
        if self.initial_backoff_s < 0 or self.max_backoff_s < self.initial_backoff_s or self.multiplier < 1:
            raise ValueError(f"the backoff must not decrease: {self}")

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

    def wait_s(self, error: TpuserveError, attempt: int, jitter: float, remaining_s: float | None) -> float | None:
        """Return the seconds to wait before the next attempt, or None to stop.

        `remaining_s` is the time to the caller's deadline, or None without one. If the wait would pass the deadline,
        the client stops at once and reports the error. The server's retry hint is a lower bound of the wait.
        """
        if not _may_pass(error) or attempt >= self.max_attempts:
            return None
        wait = max(self.backoff_s(attempt, jitter), error.retry_after_s or 0.0)
        return wait if remaining_s is None or wait < remaining_s else None


def _may_pass(error: TpuserveError) -> bool:
    """Return whether the same request may succeed later."""
    if isinstance(error, ResourceExhausted):
        return error.retry_after_s is not None
    return isinstance(error, Unavailable)
