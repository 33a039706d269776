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


def embedding(rows: int = 5_000_000, width: int = 128) -> keras.Model:
    """Build `ids` [batch, 4] → `scores` [batch, 2] with one table of 2.56 GB of float32."""
    ids = keras.Input((4,), dtype="int32", name="ids")
    found = keras.layers.Flatten()(keras.layers.Embedding(rows, width, name="table")(ids))
    return keras.Model(ids, keras.layers.Dense(2, name="scores")(found))


def resnet50() -> keras.Model:
    """Build Keras' ResNet-50 for 224 x 224 images, with random weights."""
    image = keras.Input((224, 224, 3), name="image")
    return keras.applications.ResNet50(weights=None, input_tensor=image)


def save(directory: Path, model: str) -> None:
    """Save a TensorFlow 2 checkpoint, like training does, or the embedding as a `.keras` file."""
    import tensorflow as tf

    built = globals()[model]()
    if model == "embedding":
        directory.mkdir(parents=True, exist_ok=True)
        built.save(directory / "model.keras")
    else:
        tf.train.Checkpoint(model=built).save(str(directory / "ckpt"))


if __name__ == "__main__":
    save(Path(sys.argv[1]), sys.argv[2])
