"""VersionStatistics: totals of the requests and batches of one version, for protocols that report them to clients."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Total:
    """A number of events, and the sum of their durations in nanoseconds."""

    count: int = 0
    ns: int = 0


NO_EVENTS: Final = Total()


@dataclass(frozen=True, slots=True)
class VersionStatistics:
    """Totals since the version was loaded.

    `last_inference_ms` is the end of the last batch in milliseconds since 1970, or 0. `rows` counts rows, and `batches`
    counts runs on the device. `success`, `fail` and `queue` count requests. `compute` counts the requests that ran,
    each with the duration of its batch. `cache_hit` and `cache_miss` count look-ups in the response cache. The times of
    misses include storing the outputs. `sizes` are the runs by their number of rows with padding.
    """

    last_inference_ms: int = 0
    rows: int = 0
    batches: int = 0
    success: Total = NO_EVENTS
    fail: Total = NO_EVENTS
    queue: Total = NO_EVENTS
    compute: Total = NO_EVENTS
    cache_hit: Total = NO_EVENTS
    cache_miss: Total = NO_EVENTS
    sizes: tuple[tuple[int, Total], ...] = ()
