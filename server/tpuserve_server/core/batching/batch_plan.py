"""BatchPlan: how many of the rows that wait run next, where a batch is padded to one of a few sizes."""

import bisect
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tpuserve_server.core.batching.options import PaddingPolicy
from tpuserve_server.core.padding import choose_bucket

# Mean seconds of a run of so many rows, of sequences padded to so many lengths; None where nothing is known.
RunCost: TypeAlias = Callable[[int, tuple[int, ...]], float | None]

# A smaller batch must be cheaper by this much for each row: less is noise, and more rows at a time wait less.
_WORTH_WAITING = 0.95
# What is known of costs changes slowly; choices are remembered for this many batches.
_REMEMBERED_FOR = 64


class BatchPlan:
    """One signature's padding policy. A choice is a pure function of the rows and the costs. Not safe for threads.

    The policies are TensorFlow's (batching_util/batch_scheduler_utils.h, MaybeBatchDown). MIN_COST looks at every size
    where TensorFlow's looks at the next smaller and the next larger, and at what whole requests fill of it.
    """

    def __init__(self, buckets: Sequence[int], policy: PaddingPolicy, cost: RunCost) -> None:
        """`buckets` ascend, and the last holds the largest batch. `cost` is asked for nothing but these."""
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
        """How many of `rows` to run, from the first on: one of `ends`, or any number where that is None.

        `ends` ascend and end with `rows`: where one request's rows end and the next one's begin.
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
        """The largest size that is filled; where requests do not end there, nothing is gained, and all of them run."""
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
