"""HostAllowance: the part of a latency objective that is reserved for work outside the batcher."""

# Target share of late responses, relative to the share that may be late: half, because a controller overshoots.
_LATE_SHARE = 0.5
# A late response raises the allowance by about this share of the objective. A response in time lowers it by this step
# times the target share.
_STEP_OBJECTIVES = 1 / 40
# Largest share of the objective. A larger allowance helps no request: the batch and the requests behind it need the
# rest.
_MOST_OBJECTIVES = 0.5


class HostAllowance:
    """Seconds reserved for the time from a request's arrival to the queue, and from a batch's end to its responses.

    This time contains decoding, encoding, and an event loop that is busy with other requests. The allowance rises with
    every late response and falls with every response in time. It settles where the target share of responses is late
    (stochastic approximation of a quantile, Robbins and Monro). Not thread-safe.
    """

    def __init__(self, objective_s: float, percentile: float) -> None:
        """Start with no allowance."""
        self._objective_s = objective_s
        self._late_share = _LATE_SHARE * (1.0 - percentile / 100.0)
        self._most_s = _MOST_OBJECTIVES * objective_s
        self.seconds = 0.0

    def cap(self, needed_s: float) -> None:
        """Cap the allowance so that `needed_s` of the objective remain for the batcher."""
        self._most_s = max(min(_MOST_OBJECTIVES * self._objective_s, self._objective_s - needed_s), 0.0)
        self.seconds = min(self.seconds, self._most_s)

    def record_latency(self, latency_s: float) -> None:
        """Record a response that went out `latency_s` after its request arrived."""
        late = latency_s > self._objective_s
        step = _STEP_OBJECTIVES * self._objective_s * (late - self._late_share)
        self.seconds = min(max(self.seconds + step, 0.0), self._most_s)
