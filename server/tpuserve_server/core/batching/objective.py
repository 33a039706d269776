"""What a latency objective asks of a batch's size. Pure: costs, times and rates come in, sizes go out.

`L` is the objective, `c(b)` what a batch of `b` rows costs. Batches run back to back, so a request that comes when one
has just begun waits for it and then for its own. If `2 c(b) <= L` for batches of `b` rows, everybody is in time, at
`b / c(b)` rows a second. If more come than that, some are late or refused whatever is done, and larger batches may be
worth it: of those who come while one runs, the last `L - c(b)` seconds' fit the next, which makes
`min(b, rate (L - c(b))) / c(b)` rows a second in time.
"""

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

# How much more goodput it takes to plan batches for which some must be refused.
_LEAST_GAIN = 1.02


@dataclass(frozen=True, slots=True)
class Sizes:
    """What batches of each allowed size cost: `rows`, ascending; seconds on average; their standard deviation."""

    rows: tuple[int, ...]
    mean_s: tuple[float, ...]
    spread_s: tuple[float, ...]

    def index(self, rows: int) -> int:
        """The smallest size that holds `rows`, the largest if none does."""
        return min(bisect.bisect_left(self.rows, rows), len(self.rows) - 1)

    def largest_within(self, seconds: float) -> int:
        """The largest size that on average takes no longer; -1 if none is that fast."""
        return bisect.bisect_right(self.mean_s, seconds) - 1


def capacity(sizes: Sizes, latency_s: float) -> float:
    """Rows a second that can be answered within `latency_s` if none is refused and costs are the averages."""
    return max(
        (rows / mean for rows, mean in zip(sizes.rows, sizes.mean_s, strict=True) if 2 * mean <= latency_s),
        default=0.0,
    )


def choose_target(sizes: Sizes, latency_s: float, margins: float, rows_per_s: float) -> int:
    """The size to plan for: that which brings most rows in time, of several the largest.

    `margins`: how many spreads longer than its average a batch is expected to take.
    """
    safe = 0
    safe_goodput = risky_goodput = 0.0
    risky = -1
    smaller = 0
    for index, (rows, mean_s) in enumerate(zip(sizes.rows, sizes.mean_s, strict=True)):
        window_s = latency_s - mean_s - margins * sizes.spread_s[index]
        if window_s <= 0.0:
            break
        if window_s >= mean_s:
            goodput = min(rows_per_s, rows / mean_s)
            if goodput >= safe_goodput:
                safe, safe_goodput = index, goodput
        else:
            in_time = min(float(rows), rows_per_s * window_s)
            # What the next smaller size holds too is not this one's merit.
            if in_time > smaller and in_time / mean_s > risky_goodput:
                risky, risky_goodput = index, in_time / mean_s
        smaller = rows
    return risky if risky_goodput > _LEAST_GAIN * safe_goodput else safe


def choose_rows(
    sizes: Sizes,
    latency_s: float,
    target: int,
    now_s: float,
    enqueued_s: Sequence[float],
    rows: Sequence[int],
    others_s: float = 0.0,
) -> int:
    """How many of the rows that wait should run now, if the device is free: an allowed size, or larger than all.

    `enqueued_s` and `rows` are the tasks', oldest first. Fewest rows late, those that are left behind for the next
    batch among them; of several ways that which costs least for each row, and of those the largest. Others' batches,
    which take `others_s`, run before the next.
    """
    ends = list(itertools.accumulate(rows))
    total = ends[-1]
    best = sizes.rows[0]
    best_late, best_rate = total + 1, 0.0
    for index, size in enumerate(sizes.rows):
        taken = bisect.bisect_right(ends, size)
        if not taken:
            continue
        finish_s = now_s + sizes.mean_s[index]
        late = _rows_before(finish_s - latency_s, enqueued_s, ends, 0, taken)
        if taken < len(ends):
            rest = sizes.index(total - ends[taken - 1])
            next_s = finish_s + others_s + sizes.mean_s[min(rest, max(target, index))]
            late += _rows_before(next_s - latency_s, enqueued_s, ends, taken, len(ends))
        rate = ends[taken - 1] / sizes.mean_s[index]
        if (-late, rate) >= (-best_late, best_rate):
            best, best_late, best_rate = size, late, rate
        if taken == len(ends):
            break
    return max(best, rows[0])


def _rows_before(time_s: float, enqueued_s: Sequence[float], ends: Sequence[int], first: int, last: int) -> int:
    """Rows of the tasks from `first` to `last` that came before `time_s`. Not those that came a nanosecond before."""
    late = bisect.bisect_left(enqueued_s, time_s - 1e-9, first, last)
    if late == first:
        return 0
    return ends[late - 1] - (ends[first - 1] if first else 0)
