"""Planned arrivals of open loads, computed from the documented meaning of the options and not by the load tester."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

# The default of --seed.
SEED: Final = 20


def planned(
    pieces: Sequence[tuple[float, float, float]], process: str = "constant", *, seed: int = SEED, burst: int = 10
) -> list[float]:
    """Return the arrivals in seconds from the start, for consecutive pieces of seconds, first rate and last rate.

    Arrivals at one request per second, of any process, become arrivals at these rates: arrival k comes when the
    integral of the rate reaches the time of unit arrival k.
    """
    total = sum(seconds * (first + last) / 2 for seconds, first, last in pieces)
    unit = _unit(process, total, seed, burst)
    return _floats(np.interp(unit[unit < total], *_integral(pieces)))


def _unit(process: str, total: float, seed: int, burst: int) -> NDArray[np.float64]:
    enough = int(total + 10 * np.sqrt(total) + 100)
    random = np.random.default_rng(seed)
    if process == "constant":
        return np.arange(enough, dtype=np.float64)
    size = burst if process == "bursts" else 1
    return np.repeat(np.cumsum(random.exponential(size, enough)), size)


def _integral(pieces: Sequence[tuple[float, float, float]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return points of the integral of the rate, and their times, dense enough for interpolation to a microsecond."""
    counts, times = [np.zeros(1)], [np.zeros(1)]
    for seconds, first, last in pieces:
        at_s = np.linspace(0, seconds, 200_001)[1:]
        counts.append(counts[-1][-1] + first * at_s + (last - first) * at_s**2 / (2 * seconds))
        times.append(times[-1][-1] + at_s)
    return np.concatenate(counts), np.concatenate(times)


def diurnal(seconds: float, mean_per_s: float, swing: float) -> list[float]:
    """Return arrivals whose rate follows one day's sine, from `1 - swing` to `1 + swing` of the mean."""
    at_s = np.linspace(0, seconds, 200_001)
    phase = 2 * np.pi * at_s / seconds
    counts = mean_per_s * (at_s + swing * seconds / (2 * np.pi) * (np.cos(phase) - 1))
    return _floats(np.interp(np.arange(int(counts[-1])), counts, at_s))


def spikes(seconds: float, rate_per_s: float, at_s: Sequence[float], size: int) -> list[float]:
    """Return even arrivals with `size` more at once at each time of `at_s`."""
    even = np.arange(int(seconds * rate_per_s)) / rate_per_s
    return _floats(np.sort(np.concatenate([even, np.repeat(np.asarray(at_s), size)])))


def _floats(instants: NDArray[np.float64]) -> list[float]:
    return [float(instant) for instant in instants]
