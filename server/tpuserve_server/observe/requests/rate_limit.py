"""RateLimit: admits events up to a rate."""

import math


class RateLimit:
    """Token bucket with the tokens of one second. One thread owns it. Times are monotonic."""

    def __init__(self, per_s: float) -> None:
        """Admit `per_s` events each second, at least 1."""
        self._per_s = per_s
        self._tokens = 0.0
        # The first event finds a full bucket.
        self._at_s = -math.inf

    def admits(self, now_s: float) -> bool:
        """Take a token, and return whether there was one."""
        self._tokens = min(self._tokens + (now_s - self._at_s) * self._per_s, self._per_s)
        self._at_s = now_s
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
