"""HostAllowance: how much of a latency objective is left for what happens outside the batcher."""

# Half of what may be late, as a controller overshoots.
_LATE_SHARE = 0.5
# So many objectives more for an answer that is late; those in time give it back, by the share that may be late.
_STEP_OBJECTIVES = 1 / 40
# More helps nobody: a batch and whoever waits for it need the rest.
_MOST_OBJECTIVES = 0.5


class HostAllowance:
    """Seconds between a batch's end and its answers' way out, and between a request's arrival and the queue: decoding,
    encoding, and an event loop that has others' requests in its hands.

    The allowance rises with every answer that is late and falls with every one in time, so that it comes to rest where
    the share that may be late is late (Robbins' and Monro's stochastic approximation, of a quantile). Not safe for
    threads.
    """

    def __init__(self, objective_s: float, percentile: float) -> None:
        """Nothing is known yet, and nothing kept."""
        self._objective_s = objective_s
        self._late_share = _LATE_SHARE * (1.0 - percentile / 100.0)
        self._most_s = _MOST_OBJECTIVES * objective_s
        self.seconds = 0.0

    def leave(self, needed_s: float) -> None:
        """Never keep what the batcher cannot do without: `needed_s` of the objective."""
        self._most_s = max(min(_MOST_OBJECTIVES * self._objective_s, self._objective_s - needed_s), 0.0)
        self.seconds = min(self.seconds, self._most_s)

    def answered(self, latency_s: float) -> None:
        """An answer went out `latency_s` after its request had come."""
        late = latency_s > self._objective_s
        step = _STEP_OBJECTIVES * self._objective_s * (late - self._late_share)
        self.seconds = min(max(self.seconds + step, 0.0), self._most_s)
