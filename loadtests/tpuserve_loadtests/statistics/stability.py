"""Stability of a run by perf_analyzer's criterion: the last three windows agree within 10 %."""

from collections.abc import Sequence

WINDOWS = 3
TOLERANCE = 0.10


def is_stable(values: Sequence[float | None], windows: int = WINDOWS, tolerance: float = TOLERANCE) -> bool | None:
    """Return whether the largest of the last `windows` values exceeds the smallest by at most `tolerance` of it.

    Returns None for fewer values, or if any of them is None.
    """
    last = [value for value in values[-windows:] if value is not None]
    if len(last) < windows:
        return None
    return max(last) <= min(last) * (1 + tolerance)
