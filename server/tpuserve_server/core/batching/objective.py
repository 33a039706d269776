"""Batch sizes for a latency objective. Pure functions of costs, times and rates.

`L` is the objective, and `c(b)` is the cost of a batch of `b` rows. Batches run back to back, so a request that arrives
just after a batch has begun waits for that batch and then for its own. If `2 c(b) <= L`, every request is in time, up
to a rate of `b / c(b)` rows a second. Above that rate some requests are late or refused in any case, and larger batches
may pay. The next batch can answer in time only the requests that arrive in the last `L - c(b)` seconds of the batch
before it. The result is `min(b, rate (L - c(b))) / c(b)` rows a second in time.
"""

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

# A size for which some requests must be refused is planned only if it raises the goodput by this factor.
_LEAST_GAIN = 1.02


@dataclass(frozen=True, slots=True)
class Sizes:
    """Costs of batches by allowed size: `rows`, ascending, mean seconds and standard deviation."""

    rows: tuple[int, ...]
    mean_s: tuple[float, ...]
    spread_s: tuple[float, ...]

    def index(self, rows: int) -> int:
        """Return the index of the smallest size that holds `rows`, or of the largest size if none does."""
        return min(bisect.bisect_left(self.rows, rows), len(self.rows) - 1)

    def largest_within(self, seconds: float) -> int:
        """Return the index of the largest size that takes at most `seconds` on average, or -1 if none does."""
        return bisect.bisect_right(self.mean_s, seconds) - 1


def capacity(sizes: Sizes, latency_s: float) -> float:
    """Return the rows a second that can be answered within `latency_s` at mean costs if none is refused."""
    return max(
        (rows / mean for rows, mean in zip(sizes.rows, sizes.mean_s, strict=True) if 2 * mean <= latency_s),
        default=0.0,
    )


def choose_target(sizes: Sizes, latency_s: float, margins: float, rows_per_s: float) -> int:
    """Return the index of the size that answers most rows in time, the largest of equals.

    `margins`: the standard deviations by which a batch is expected to exceed its mean.
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
            # Rows that the next smaller size also holds are no gain of this size.
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
    other_work_s: float = 0.0,
) -> int:
    """Return how many waiting rows to run now if the device is free.

    The result is an allowed size, or the rows of the first task if no size holds them. `enqueued_s` and `rows` belong
    to the tasks, oldest first. The choice minimizes the late rows, including those left for the next batch. Among
    equals it minimizes the cost for each row, then takes the largest size. Batches of other keys take `other_work_s`
    seconds and run before the next batch.
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
            next_s = finish_s + other_work_s + sizes.mean_s[min(rest, max(target, index))]
            late += _rows_before(next_s - latency_s, enqueued_s, ends, taken, len(ends))
        rate = ends[taken - 1] / sizes.mean_s[index]
        if (-late, rate) >= (-best_late, best_rate):
            best, best_late, best_rate = size, late, rate
        if taken == len(ends):
            break
    return max(best, rows[0])


def _rows_before(time_s: float, enqueued_s: Sequence[float], ends: Sequence[int], first: int, last: int) -> int:
    """Return the rows of the tasks from `first` to `last` that arrived more than a nanosecond before `time_s`."""
    late = bisect.bisect_left(enqueued_s, time_s - 1e-9, first, last)
    if late == first:
        return 0
    return ends[late - 1] - (ends[first - 1] if first else 0)
