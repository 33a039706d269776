"""Train a classifier of wines, and save it with `model.save("wine.keras")`.

python examples/wine_keras_file/train.py --out wine.keras
tpuserve export wine.keras models/wine
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def train(path: Path) -> Path:
    """Train briefly and write the .keras file."""
    import keras

    from examples.wine_keras_file.data import load

    features, cultivars = load()
    keras.utils.set_random_seed(1)
    scale = keras.layers.Normalization(name="scale")
    scale.adapt(features)
    inputs = keras.Input((13,), name="features")
    hidden = keras.layers.Dense(16, activation="relu", name="hidden")(scale(inputs))
    model = keras.Model(inputs, keras.layers.Dense(3, activation="softmax", name="cultivar")(hidden), name="wine")
    model.compile("adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(features, cultivars, epochs=30, batch_size=16, verbose=0)
    _, accuracy = model.evaluate(features, cultivars, verbose=0)
    print(f"accuracy on the {len(cultivars)} training rows: {accuracy:.3f}")
    model.save(path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="Output file.")
    train(parser.parse_args().out)


if __name__ == "__main__":
    main()
