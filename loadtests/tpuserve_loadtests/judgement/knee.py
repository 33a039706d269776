"""The knee of a sweep: the load beyond which latency grows faster than throughput."""

from collections.abc import Sequence
from typing import Final

# With fewer loads, the highest power can be at a load that only happens to be between the others.
LEAST_LOADS: Final = 3


def find_knee(loads: Sequence[tuple[float, float]]) -> int | None:
    """Return the index of the knee among loads, each with its throughput and its mean latency, both above 0.

    The knee is the load with the highest power, which is throughput divided by mean latency (Kleinrock, "Power and
    deterministic rules of thumb for probabilistic problems in computer communications", 1979). Beyond the highest
    power, latency grows by a larger factor than throughput. The order of the loads is from the lowest to the highest.

    Returns None for fewer than LEAST_LOADS loads, and if the last load has the highest power: the knee is beyond it.
    """
    if len(loads) < LEAST_LOADS:
        return None
    powers = [throughput / latency for throughput, latency in loads]
    knee = powers.index(max(powers))
    return None if knee == len(loads) - 1 else knee
