"""Models that `python -m benchmarks export_memory` exports, named on the exporter's command line."""

import sys
from pathlib import Path

import keras


def wide(layers: int = 8, units: int = 8192) -> keras.Model:
    """Build `features` [batch, units] → `scores` [batch, 8]. Eight layers of 8192 by 8192 are 2.1 GB of float32."""
    x = features = keras.Input((units,), name="features")
    for index in range(layers):
        x = keras.layers.Dense(units, activation="relu", name=f"wide{index}")(x)
    return keras.Model(features, keras.layers.Dense(8, name="scores")(x))


def resnet50() -> keras.Model:
    """Build Keras' ResNet-50 for 224 x 224 images, with random weights."""
    image = keras.Input((224, 224, 3), name="image")
    return keras.applications.ResNet50(weights=None, input_tensor=image)


def save(directory: Path, model: str) -> None:
    """Save a TensorFlow 2 checkpoint, like training does."""
    import tensorflow as tf

    tf.train.Checkpoint(model=globals()[model]()).save(str(directory / "ckpt"))


if __name__ == "__main__":
    save(Path(sys.argv[1]), sys.argv[2])
