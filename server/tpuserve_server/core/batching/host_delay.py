"""HostDelay: the time from the end of a batch to its responses, which the event loop needs to encode and send them."""

# Weights and factor of TCP's retransmission timer (RFC 6298, 2.3): smoothed mean plus four mean deviations.
_MEAN_WEIGHT = 1 / 8
_DEVIATION_WEIGHT = 1 / 4
_DEVIATIONS = 4.0


class HostDelay:
    """Seconds to expect between the end of a batch and the last of its responses.

    Event loops record, and any thread reads. Both without a lock: a lost update is harmless.
    """

    __slots__ = ("_deviation_s", "_mean_s", "seconds")

    def __init__(self) -> None:
        """Start with no delay."""
        self._mean_s = self._deviation_s = 0.0
        self.seconds = 0.0

    def record(self, delay_s: float) -> None:
        """Record that the responses of a batch went out `delay_s` after it had ended."""
        off_s = delay_s - self._mean_s
        self._mean_s += _MEAN_WEIGHT * off_s
        self._deviation_s += _DEVIATION_WEIGHT * (abs(off_s) - self._deviation_s)
        self.seconds = self._mean_s + _DEVIATIONS * self._deviation_s
