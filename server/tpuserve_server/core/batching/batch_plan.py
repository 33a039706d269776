"""BatchPlan: decides how many waiting rows run next, if batches are padded to one of a few sizes."""

import bisect
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tpuserve_server.core.batching.options import PaddingPolicy
from tpuserve_server.core.padding import choose_bucket

# Mean seconds of a run by its rows and by the lengths that its sequences are padded to, or None if unknown.
RunCost: TypeAlias = Callable[[int, tuple[int, ...]], float | None]

# A smaller batch must be cheaper for each row by this factor: less is noise, and larger batches shorten the queue.
_WORTH_WAITING = 0.95
# Costs change slowly, so choices are cached for this many batches.
_REMEMBERED_FOR = 64


class BatchPlan:
    """The padding policy of one signature. A choice is a pure function of the rows and the costs. Not thread-safe.

    The policies are TensorFlow's (batching_util/batch_scheduler_utils.h, MaybeBatchDown), except that MIN_COST
    considers every size. TensorFlow's considers the next smaller and the next larger size. MIN_COST also counts only
    the rows that whole requests fill.
    """

    def __init__(self, buckets: Sequence[int], policy: PaddingPolicy, cost: RunCost) -> None:
        """`buckets` ascend, and the last holds the largest batch. `cost` is called only with these sizes."""
        self._buckets = tuple(buckets)
        self._choose = {
            PaddingPolicy.PAD_UP: self._pad_up,
            PaddingPolicy.BATCH_DOWN: self._batch_down,
            PaddingPolicy.MIN_COST: self._min_cost,
        }[policy]
        self._cost = cost
        self._remembered: dict[tuple[int, tuple[int, ...]], int] = {}
        self._uses_left = 0

    def choose(self, rows: int, ends: Sequence[int] | None = None, lengths: tuple[int, ...] = ()) -> int:
        """Return how many of `rows` to run, counted from the first: one of `ends`, or any number if `ends` is None.

        `ends` ascend and contain the row counts at which requests end. The last is `rows`.
        """
        if ends is not None:
            return self._choose(rows, ends, lengths)
        if not self._uses_left:
            self._remembered.clear()
            self._uses_left = _REMEMBERED_FOR
        self._uses_left -= 1
        chosen = self._remembered.get((rows, lengths))
        if chosen is None:
            chosen = self._remembered[rows, lengths] = self._choose(rows, None, lengths)
        return chosen

    def _pad_up(self, rows: int, ends: Sequence[int] | None, lengths: tuple[int, ...]) -> int:
        return rows

    def _batch_down(self, rows: int, ends: Sequence[int] | None, lengths: tuple[int, ...]) -> int:
        """Return the largest size that the rows fill, or all rows if they fill none or no request ends there."""
        smaller = bisect.bisect_right(self._buckets, rows)
        if not smaller:
            return rows
        size = self._buckets[smaller - 1]
        return size if ends is None or size in ends else rows

    def _min_cost(self, rows: int, ends: Sequence[int] | None, lengths: tuple[int, ...]) -> int:
        best = rows
        best_s = self._per_row_s(rows, lengths)
        if best_s is None:
            return rows
        for size in reversed(self._buckets[: bisect.bisect_left(self._buckets, rows)]):
            fits = size if ends is None else _last_up_to(size, ends)
            if fits and (cost_s := self._per_row_s(fits, lengths)) is not None and cost_s < best_s * _WORTH_WAITING:
                best, best_s = fits, cost_s
        return best

    def _per_row_s(self, rows: int, lengths: tuple[int, ...]) -> float | None:
        cost_s = self._cost(choose_bucket(rows, self._buckets), lengths)
        return None if cost_s is None else cost_s / rows


def _last_up_to(rows: int, ends: Sequence[int]) -> int:
    index = bisect.bisect_right(ends, rows)
    return ends[index - 1] if index else 0
