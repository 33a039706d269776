"""A stateful Keras GRU from a TF2 checkpoint, served with its state as input and output."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from examples.example import Array, Example, Tensors

if TYPE_CHECKING:
    import keras


def train(folder: Path) -> Path:
    from examples.sine_gru.train import train

    train(folder / "checkpoints", epochs=5, seed=1)
    return folder / "checkpoints"


def requests() -> list[dict[str, Array]]:
    """Return the first value of a series, and the next values of three, with states like those after a step."""
    from examples.sine_gru.data import make
    from examples.sine_gru.model import UNITS

    values, states = make(3, 2, seed=7), np.random.default_rng(1).uniform(-1, 1, (3, UNITS)).astype(np.float32)
    return [
        {"value": values[:1, :1], "state": np.zeros((1, UNITS), np.float32)},
        {"value": values[:, 1:], "state": states},
    ]


def answer(source: Path, request: Tensors) -> Tensors:
    """Predict with the stateful model, after setting its layer to the request's state."""
    model = load(source, series=len(request["value"]))
    (state,) = model.get_layer("gru").states
    state.assign(request["state"])
    forecast = model(request["value"][:, None])[:, 0].numpy()
    return {"forecast": forecast, "state": state.numpy()}


def load(source: Path, series: int) -> "keras.Model":
    """Return the trained stateful model for another number of series."""
    import tensorflow as tf

    from examples.sine_gru.model import stateful
    from examples.sine_gru.train import SERIES

    trained, model = stateful(SERIES), stateful(series)
    tf.train.Checkpoint(model=trained).restore(tf.train.latest_checkpoint(source)).expect_partial()
    for own, saved in zip(model.trainable_variables, trained.trainable_variables, strict=True):
        own.assign(saved)
    return model


EXAMPLE = Example(
    name="sine_gru",
    source="TF2 checkpoint, stateful GRU",
    train=train,
    requests=requests,
    answer=answer,
    export_options=("--model", "examples.sine_gru.model:build", "--allow-unused", "*state*"),
)
