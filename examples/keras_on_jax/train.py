"""Train a regression with Keras 3 on JAX, and save it as a .keras file.

    KERAS_BACKEND=jax python examples/keras_on_jax/train.py --out diabetes.keras
    tpuserve export diabetes.keras models/keras_on_jax

The exporter reads the file on TensorFlow. Layers that use keras.ops compute the same on both.
"""

import argparse
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

os.environ.setdefault("KERAS_BACKEND", "jax")


def load() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return scikit-learn's diabetes data: measurements float32 [442, 10], and disease progression float32 [442, 1]."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes()
    return data.data.astype(np.float32), (data.target[:, np.newaxis] / 100).astype(np.float32)


def train(path: Path) -> Path:
    """Train briefly and write the .keras file."""
    import keras

    measurements, progression = load()
    keras.utils.set_random_seed(1)
    inputs = keras.Input((10,), name="measurements")
    x = keras.layers.Dense(32, activation="gelu", name="hidden")(inputs)
    x = keras.layers.LayerNormalization(name="norm")(x)
    model = keras.Model(inputs, keras.layers.Dense(1, name="progression")(x), name="diabetes")
    model.compile(keras.optimizers.AdamW(3e-3), loss="mse", metrics=["mae"])
    model.fit(measurements, progression, epochs=30, batch_size=32, verbose=0)
    _, error = model.evaluate(measurements, progression, verbose=0)
    print(f"backend {keras.backend.backend()}: mean absolute error {error:.2f} on the training rows")
    model.save(path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="Output file.")
    train(parser.parse_args().out)


if __name__ == "__main__":
    main()
