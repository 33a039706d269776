"""Endless arrivals at an average of one request per second: random, even, or in bursts."""

from collections.abc import Iterator
from typing import Final, Literal, TypeAlias, get_args

import numpy as np

from tpuserve_loadtests.arrivals.rate_profile import Instants

Process: TypeAlias = Literal["poisson", "constant", "bursts"]

PROCESSES: Final[tuple[Process, ...]] = get_args(Process)
BURST: Final = 10
_CHUNK: Final = 4096


def unit_arrivals(process: Process, seed: int, burst: int = BURST) -> Iterator[Instants]:
    """Yield arrays of ascending arrival times, in seconds.

    Bursts are groups of `burst` simultaneous requests. The groups arrive at random times.
    """
    random = np.random.default_rng(seed)
    now = 0.0
    while True:
        if process == "constant":
            yield now + np.arange(_CHUNK, dtype=np.float64)
            now += _CHUNK
            continue
        size = burst if process == "bursts" else 1
        instants = now + np.cumsum(random.exponential(size, _CHUNK))
        now = float(instants[-1])
        yield np.repeat(instants, size)
