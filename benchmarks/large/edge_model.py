"""A model with large requests and hardly any work: the first values of rows of float32 of any length.

Writing needs TensorFlow and runs in a separate process (`edge_model.py BASE`).
"""

import sys
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.harness.function_model import write_function
from benchmarks.harness.mlp_model import Floats

NAME: Final = "edge"
_VALUES: Final = 3


def example(values: int) -> Floats:
    """Return a row of shape (1, values), the same on every call."""
    return np.random.default_rng(2).random((1, values), np.float32)


def expected(x: Floats) -> Floats:
    """Return the model's output for x of shape (n, values): shape (n, 3)."""
    return x[:, :_VALUES]


def write(base: Path) -> Path:
    """Write version 1 below `base` and return its directory. Imports TensorFlow."""
    return write_function(base, (None,), lambda tf, x: x[:, :_VALUES])


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
