"""Writes a Keras 2 model with `save` and with `export`, and its output (`python keras2_model.py FOLDER`).

Runs in a separate process, because Keras 2 and 3 conflict in one.
"""

import os
import sys
from pathlib import Path

import numpy as np

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import tf_keras

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)


def write(folder: Path) -> None:
    """Save and export a normalised dense layer; `answer.npy` contains its output for X."""
    tf_keras.utils.set_random_seed(4)
    model = tf_keras.Sequential(
        [tf_keras.layers.BatchNormalization(input_shape=(6,)), tf_keras.layers.Dense(3, activation="softmax")]
    )
    model.save(str(folder / "save"), save_format="tf")
    model.export(str(folder / "export"))
    np.save(folder / "answer.npy", model.predict(X, verbose=0))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
