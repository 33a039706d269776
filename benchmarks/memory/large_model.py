"""A model with large weights, as a SavedModel: square float32 layers of 64 MB from 4096 to 4096 numbers.

Writing needs TensorFlow and runs in a separate process: `large_model.py BASE MEGABYTES`.
"""

import os
import sys
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.harness import mlp_model

SIDE: Final = 4096
# Megabytes of 2^20 bytes.
LAYER_MB: Final = 4 * SIDE * SIDE // 2**20


def write(base: Path, megabytes: int) -> Path:
    """Write version 1 below `base` with weights of at least this size, and return its directory. Imports TensorFlow."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    random = np.random.default_rng(22)
    module = tf.Module()
    module.layers = [
        tf.Variable(random.random((SIDE, SIDE), np.float32) / SIDE) for _ in range(-(-megabytes // LAYER_MB))
    ]

    def serve(x: tf.Tensor) -> dict[str, tf.Tensor]:
        for layer in module.layers:
            x = tf.nn.relu(x @ layer)
        return {mlp_model.OUTPUT: x}

    module.serve = tf.function(serve, input_signature=[tf.TensorSpec((None, SIDE), tf.float32, name=mlp_model.INPUT)])
    version = base / str(mlp_model.VERSION)
    tf.saved_model.save(module, str(version), signatures={mlp_model.SIGNATURE: module.serve})
    mlp_model.write_manifest(version, (mlp_model.SIGNATURE,))
    return version


if __name__ == "__main__":
    print(write(Path(sys.argv[1]), int(sys.argv[2])))
