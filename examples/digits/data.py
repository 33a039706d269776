"""scikit-learn's handwritten digits with a fixed split: training and the demo use the same held-out rows.

Needs no TensorFlow, so that clients can use it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

# Largest grey level in the data set. The smallest is 0.
_BRIGHTEST = 16.0
_SPLIT_SEED = 20
# Name of the file with held-out rows, next to the checkpoints.
HELD_OUT: Final = "held_out.npz"


@dataclass(frozen=True, slots=True)
class Digits:
    """Images float32 [rows, 8, 8, 1] from 0 (paper) to 1 (ink), and their labels int64 [rows] from 0 to 9."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]


def save(digits: Digits, path: Path) -> None:
    """Save rows for `tpuserve export --labelled`: inputs under the name of the model's input, and their labels."""
    np.savez(path, image=digits.images, label=digits.labels)


def load() -> tuple[Digits, Digits]:
    """Return the 1347 rows for training and the 450 held-out rows, stratified by digit. Downloads nothing."""
    data = load_digits()
    images = (data.images[..., np.newaxis] / _BRIGHTEST).astype(np.float32)
    labels = data.target.astype(np.int64)
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.25, random_state=_SPLIT_SEED, stratify=labels
    )
    return Digits(train_x, train_y), Digits(test_x, test_y)
