"""Whether a run has settled: perf_analyzer's criterion, the last three windows within 10 %."""

from collections.abc import Sequence

WINDOWS = 3
TOLERANCE = 0.10


def is_stable(values: Sequence[float | None], windows: int = WINDOWS, tolerance: float = TOLERANCE) -> bool | None:
    """Whether the largest of the last `windows` values exceeds the smallest by no more than `tolerance` of it.

    None where that cannot be said: fewer windows, or one in which nothing was measured.
    """
    last = [value for value in values[-windows:] if value is not None]
    if len(last) < windows:
        return None
    return max(last) <= min(last) * (1 + tolerance)
