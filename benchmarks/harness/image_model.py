"""A model with large requests and little work: the mean of each channel of float32 images, 602 KB an image.

Writing needs TensorFlow and runs in a separate process (`image_model.py BASE`).
"""

import sys
from pathlib import Path

import numpy as np

from benchmarks.harness.function_model import write_function
from benchmarks.harness.mlp_model import Floats

NAME = "image"
SHAPE = (224, 224, 3)


def example() -> Floats:
    """Return an image of shape (1, 224, 224, 3), the same on every call."""
    return np.random.default_rng(1).random((1, *SHAPE), np.float32)


def expected(x: Floats) -> Floats:
    """Return the model's output for x of shape (n, 224, 224, 3): shape (n, 3)."""
    y: Floats = x.mean((1, 2), np.float64).astype(np.float32)
    return y


def write(base: Path) -> Path:
    """Write version 1 below `base` and return its directory. Imports TensorFlow."""
    return write_function(base, SHAPE, lambda tf, x: tf.reduce_mean(x, (1, 2)))


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
