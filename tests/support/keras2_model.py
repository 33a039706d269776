"""Writes a Keras 2 model (`python keras2_model.py FOLDER`) as `save` and as `export`, and what it answers.

In a process of its own: Keras 2 and 3 do not share one.
"""

import os
import sys
from pathlib import Path

import numpy as np

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import tf_keras

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)


def write(folder: Path) -> None:
    """A normalised dense layer, saved and exported; `answer.npy` holds its answer to X."""
    tf_keras.utils.set_random_seed(4)
    model = tf_keras.Sequential(
        [tf_keras.layers.BatchNormalization(input_shape=(6,)), tf_keras.layers.Dense(3, activation="softmax")]
    )
    model.save(str(folder / "save"), save_format="tf")
    model.export(str(folder / "export"))
    np.save(folder / "answer.npy", model.predict(X, verbose=0))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
