"""A classifier of scikit-learn's irises whose source is a SavedModel, written by tf.saved_model.save without Keras."""

from pathlib import Path

from examples.example import Array, Example, Tensors


def train(folder: Path) -> Path:
    from examples.iris_saved_model.train import train

    return train(folder / "saved")


def requests() -> list[dict[str, Array]]:
    """Return two flowers of each species."""
    from examples.iris_saved_model.train import load

    measures, _ = load()
    return [{"measures": measures[::25]}]


def answer(source: Path, request: Tensors) -> Tensors:
    import tensorflow as tf

    serve = tf.saved_model.load(str(source)).signatures["serving_default"]
    return {name: value.numpy() for name, value in serve(measures=tf.constant(request["measures"])).items()}


EXAMPLE = Example(name="iris_saved_model", source="existing SavedModel", train=train, requests=requests, answer=answer)
