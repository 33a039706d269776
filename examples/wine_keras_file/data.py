"""scikit-learn's wines: 13 measurements of each, and its grower, one of three."""

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_wine


def load() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return features float32 [178, 13] in their own units, and cultivars int64 [178]. Downloads nothing."""
    data = load_wine()
    return data.data.astype(np.float32), data.target.astype(np.int64)
