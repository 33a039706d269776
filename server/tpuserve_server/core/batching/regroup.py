"""Regroup: a short wait for the clients that were just answered, if they usually send again at once.

Such clients fall into two groups under a batcher that never waits. One group runs while the other waits, in batches
half as large as they could be. A batch of all clients may cost less than two half batches, each of which waits for the
other. Then a short wait makes every request faster and raises the throughput of the device.
"""

from collections.abc import Callable

# Longest wait, as a share of the run that has ended and in seconds. The device loses it if no client comes back.
_MOST_OF_RUN = 1 / 20
MOST_WAIT_S = 0.02
# Shortest run that justifies a wait: after a shorter one the wait would be shorter than any client's round trip.
LEAST_RUN_S = 0.002
# Smallest share of rows that must usually come back for a wait. Clients that send at random rarely send in so short a
# time, and not after several batches in a row. Most clients that send again at once do.
_LEAST_SHARE = 0.5
# Weight of the latest batch in the running mean of the share that comes back.
_WEIGHT = 0.25


class Regroup:
    """The state of one signature. It counts the rows that come back after every batch, even if none waits for them.

    Not thread-safe.
    """

    def __init__(self, cost_s: Callable[[int], float | None], max_rows: int) -> None:
        """`cost_s` returns the seconds of a batch of this many rows, or None. A batch has at most `max_rows`."""
        self._cost_s = cost_s
        self._max_rows = max_rows
        self._share = 0.0
        self._completed = 0
        self._arrived = 0
        self._wait_s = self._end_s = 0.0

    def completed(self, rows: int, run_s: float, now_s: float) -> None:
        """Record that a batch of `rows` rows was answered now, after `run_s` on the device."""
        if self._completed:
            self._share += _WEIGHT * (min(self._arrived / self._completed, 1.0) - self._share)
        self._completed, self._arrived = rows, 0
        self._wait_s = min(_MOST_OF_RUN * run_s, MOST_WAIT_S)
        self._end_s = now_s + self._wait_s

    def arrived(self, rows: int, now_s: float) -> None:
        """Record the arrival of a request of `rows` rows."""
        if now_s <= self._end_s:
            self._arrived += rows

    def until_s(self, waiting: int) -> float:
        """Return until when a batch of `waiting` rows should wait for the expected rows, or 0 if it should not wait."""
        if self._share < _LEAST_SHARE:
            return 0.0
        expected = round(self._share * self._completed) - self._arrived
        if expected < 1 or waiting + expected > self._max_rows:
            return 0.0
        first_s, second_s, both_s = (self._cost_s(rows) for rows in (waiting, expected, waiting + expected))
        if first_s is None or second_s is None or both_s is None:
            return 0.0
        return self._end_s if first_s + second_s - both_s > self._wait_s else 0.0
