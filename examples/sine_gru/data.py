"""Series to forecast: sums of two waves with noise. No framework here, so that a client can do without."""

import numpy as np
from numpy.typing import NDArray


def make(series: int, steps: int, seed: int) -> NDArray[np.float32]:
    """float32 [series, steps], each with phases of its own."""
    random = np.random.default_rng(seed)
    phases = random.uniform(0, 2 * np.pi, (2, series, 1))
    at = np.arange(steps)
    waves = np.sin(at / 5 + phases[0]) + 0.5 * np.sin(at / 13 + phases[1])
    return np.asarray(waves + random.normal(0, 0.05, waves.shape), np.float32)
