"""Series to forecast: sums of two waves with noise. Needs no framework, so that clients can use it."""

import numpy as np
from numpy.typing import NDArray


def make(series: int, steps: int, seed: int) -> NDArray[np.float32]:
    """Return series as float32 [series, steps], each with its own phases."""
    random = np.random.default_rng(seed)
    phases = random.uniform(0, 2 * np.pi, (2, series, 1))
    at = np.arange(steps)
    waves = np.sin(at / 5 + phases[0]) + 0.5 * np.sin(at / 13 + phases[1])
    return np.asarray(waves + random.normal(0, 0.05, waves.shape), np.float32)
