"""A regression that Keras 3 trains on JAX and TensorFlow serves, exported from a .keras file."""

from pathlib import Path

from examples.example import Array, Example, Tensors


def train(folder: Path) -> Path:
    from examples.keras_on_jax.train import train

    return train(folder / "diabetes.keras")


def requests() -> list[dict[str, Array]]:
    """Return one patient, and five patients."""
    from examples.keras_on_jax.train import load

    measurements, _ = load()
    return [{"measurements": measurements[:1]}, {"measurements": measurements[10:15]}]


def answer(source: Path, request: Tensors) -> Tensors:
    """Predict with JAX."""
    import keras

    return {"progression": keras.models.load_model(source).predict(request["measurements"], verbose=0)}


EXAMPLE = Example(
    name="keras_on_jax",
    source="Keras 3 on JAX, .keras file",
    train=train,
    requests=requests,
    answer=answer,
    extra="jax",
    packages=("jax",),
    environment={"KERAS_BACKEND": "jax"},
)
