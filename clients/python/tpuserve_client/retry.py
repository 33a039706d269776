"""When to try again: exponential backoff with full jitter. Pure: no clock, no sleep.

On Unavailable, and on ResourceExhausted where the server says when: then it has run nothing, and expects to have room.

Full jitter (a wait drawn evenly from zero to the backoff) spreads a crowd of clients best:
https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
"""

from dataclasses import dataclass

from tpuserve_client.errors import ResourceExhausted, TpuserveError, Unavailable


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how fast to try again. `max_attempts` counts the first one: 1 never retries."""

    max_attempts: int = 4
    initial_backoff_s: float = 0.1
    max_backoff_s: float = 5.0
    multiplier: float = 2.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts must be at least 1, not {self.max_attempts}")
        if self.initial_backoff_s < 0 or self.max_backoff_s < self.initial_backoff_s or self.multiplier < 1:
            raise ValueError(f"a backoff must not shrink: {self}")

    def backoff_s(self, attempt: int, jitter: float) -> float:
        """The wait after attempt number `attempt` (from 1), with `jitter` drawn evenly from [0, 1)."""
        if not self.initial_backoff_s:
            return 0.0
        try:
            grown = self.initial_backoff_s * float(self.multiplier) ** (attempt - 1)
        except OverflowError:  # an hour of waiting makes thousands of attempts
            grown = self.max_backoff_s
        return jitter * min(self.max_backoff_s, grown)

    def wait_s(self, error: TpuserveError, attempt: int, jitter: float, remaining_s: float | None) -> float | None:
        """Seconds to wait before the next attempt; None if there must be none.

        `remaining_s` is the time left to the caller's deadline, None without one. A wait that would outlast it is not
        begun: the caller learns at once what is wrong. A server's own wish is a lower bound.
        """
        if not _may_pass(error) or attempt >= self.max_attempts:
            return None
        wait = max(self.backoff_s(attempt, jitter), error.retry_after_s or 0.0)
        return wait if remaining_s is None or wait < remaining_s else None


def _may_pass(error: TpuserveError) -> bool:
    """Whether the same request may be answered later."""
    if isinstance(error, ResourceExhausted):
        return error.retry_after_s is not None
    return isinstance(error, Unavailable)
