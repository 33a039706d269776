"""A classifier of scikit-learn's wines in a .keras file, whose Normalization layer has learned the feature scales."""

from pathlib import Path

from examples.example import Array, Example, Tensors


def train(folder: Path) -> Path:
    from examples.wine_keras_file.train import train

    return train(folder / "wine.keras")


def requests() -> list[dict[str, Array]]:
    """Return one wine, and five wines, with measured values."""
    from examples.wine_keras_file.data import load

    features, _ = load()
    return [{"features": features[:1]}, {"features": features[10:15]}]


def answer(source: Path, request: Tensors) -> Tensors:
    import keras

    return {"cultivar": keras.models.load_model(source).predict(request["features"], verbose=0)}


EXAMPLE = Example(name="wine_keras_file", source=".keras file", train=train, requests=requests, answer=answer)
