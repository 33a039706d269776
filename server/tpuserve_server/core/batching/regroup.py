"""Regroup: a moment for those who were just answered to come back, where they usually do.

Clients that send their next request when they have an answer fall into two groups under a batcher that never waits: one
runs while the other waits, in batches half as large as they could be. Where a batch of all of them costs less than two
of half of them, each of which is waited for, a moment's wait makes every one of them sooner, and the device does more.
"""

from collections.abc import Callable

# Waits are at most this share of the run that has ended, and this long: what it costs where nobody comes.
_MOST_OF_RUN = 1 / 20
MOST_WAIT_S = 0.02
# Of a batch that took less, the moment would be shorter than any client's way back.
LEAST_RUN_S = 0.002
# Of those who come at random hardly any comes in so short a time, and not after several batches in a row; of those who
# come straight back most do.
_LEAST_SHARE = 0.5
# Weight of the latest batch in what is known of how many come back.
_WEIGHT = 0.25


class Regroup:
    """One signature's. What comes back is counted after every batch, whether or not anything waits for it. Not safe for
    threads.
    """

    def __init__(self, cost_s: Callable[[int], float | None], max_rows: int) -> None:
        """`cost_s` knows what a batch of so many rows takes, or does not: None. A batch has at most `max_rows`."""
        self._cost_s = cost_s
        self._max_rows = max_rows
        self._share = 0.0
        self._answered = 0
        self._came = 0
        self._wait_s = self._end_s = 0.0

    def answered(self, rows: int, run_s: float, now_s: float) -> None:
        """A batch of `rows` rows was answered now, after `run_s` on the device."""
        if self._answered:
            self._share += _WEIGHT * (min(self._came / self._answered, 1.0) - self._share)
        self._answered, self._came = rows, 0
        self._wait_s = min(_MOST_OF_RUN * run_s, MOST_WAIT_S)
        self._end_s = now_s + self._wait_s

    def came(self, rows: int, now_s: float) -> None:
        """A request of `rows` rows has come."""
        if now_s <= self._end_s:
            self._came += rows

    def until_s(self, waiting: int) -> float:
        """Until when the `waiting` rows of a batch should wait for those who are expected back; 0 for not at all."""
        if self._share < _LEAST_SHARE:
            return 0.0
        expected = round(self._share * self._answered) - self._came
        if expected < 1 or waiting + expected > self._max_rows:
            return 0.0
        first_s, second_s, both_s = (self._cost_s(rows) for rows in (waiting, expected, waiting + expected))
        if first_s is None or second_s is None or both_s is None:
            return 0.0
        return self._end_s if first_s + second_s - both_s > self._wait_s else 0.0
