"""Keras files that are damaged, do not match the model, or contain code."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from tests.exporter.bad_inputs.case import Case, Change, Section, cut, fill
from tests.exporter.bad_inputs.tf2_checkpoint import MODELS, NO_TORCH

_OUT = "models/scorer"
_SCORER = f"{_OUT} --model models:scorer"


def make(folder: Path) -> None:
    """Save `scorer` in each of the formats."""
    import keras

    from tests.exporter import builders

    keras.utils.set_random_seed(1)
    keras.backend.clear_session()
    model = builders.tiny()
    model.save(folder / "scorer.keras")
    model.save(folder / "scorer.h5")
    model.save_weights(folder / "scorer.weights.h5")
    shutil.copy(MODELS / "keras_models.py", folder / "models.py")


def _lambda(name: str) -> Change:
    def change(folder: Path) -> None:
        import keras

        twice = keras.layers.Lambda(lambda x: x * 2, name="twice", output_shape=(3,))
        keras.Sequential([keras.Input((3,)), twice]).save(folder / name)

    return change


def _unregistered(name: str) -> Change:
    def change(folder: Path) -> None:
        import keras

        class Doubled(keras.layers.Layer):  # type: ignore[misc]  # keras is untyped
            def call(self, x: Any) -> Any:  # noqa: ANN401 - a Keras tensor
                return x * 2

        keras.Sequential([keras.Input((3,)), Doubled()]).save(folder / name)

    return change


def _diverge(folder: Path) -> None:
    from tests.exporter import builders

    model = builders.tiny()
    model.weights[0].assign(np.full((3, 4), np.nan, np.float32))
    model.save(folder / "scorer.keras")


def _keras_2(folder: Path) -> None:
    import tf_keras

    tf_keras.Sequential([tf_keras.Input((3,)), tf_keras.layers.Dense(2)]).save(folder / "old.keras")


SECTION = Section(
    "Keras files",
    "`scorer.keras`, `scorer.h5` and `scorer.weights.h5` contain one model with the layers `hidden` and `scores`.",
    make,
    (
        Case("The archive is cut short", 6, f"scorer.keras {_OUT}", cut("scorer.keras", 500)),
        Case("The archive is something else", 6, f"scorer.keras {_OUT}", fill("scorer.keras")),
        Case("An .h5 file is cut short", 6, f"scorer.h5 {_OUT}", cut("scorer.h5", 3000)),
        Case("A .weights.h5 file is something else", 6, f"scorer.weights.h5 {_SCORER}", fill("scorer.weights.h5")),
        Case("The file holds weights alone", 2, f"scorer.weights.h5 {_OUT}"),
        Case("The builder returns something else", 7, f"scorer.keras {_OUT} --model models:no_model"),
        Case("Shapes differ", 2, f"scorer.keras {_SCORER} --model-arg units=5"),
        Case("A variable is missing from an .h5 file", 2, f"scorer.h5 {_OUT} --model models:with_extra"),
        Case("A variable is missing from a .weights.h5 file", 2,
             f"scorer.weights.h5 {_OUT} --model models:with_extra"),
        Case("A variable is not used", 2, f"scorer.keras {_OUT} --model models:headless"),
        Case("Several things differ at once", 2, f"scorer.h5 {_OUT} --model models:other"),
        Case("A class is not registered", 6, f"doubled.keras {_OUT}", _unregistered("doubled.keras")),
        Case("A class is not registered, in an .h5 file", 6, f"doubled.h5 {_OUT}", _unregistered("doubled.h5")),
        Case("A Lambda layer brings code along", 11, f"twice.keras {_OUT}", _lambda("twice.keras")),
        Case("A Lambda layer brings code along, in an .h5 file", 11, f"twice.h5 {_OUT}", _lambda("twice.h5")),
        Case("Weights are NaN", 12, f"scorer.keras {_OUT}", _diverge),
        Case("There are no averages", 2, f"scorer.weights.h5 {_SCORER} --weights ema"),
        Case("It is of Keras 2, which is not installed", 10, f"old.keras {_OUT}", _keras_2, without=("tf_keras",)),
        Case("`--input` says another shape", 2, f"scorer.keras {_OUT} --input 'features:float32[batch,4]'"),
        Case("`--from` says it is a checkpoint", 6, f"scorer.keras {_SCORER} --from tf2-ckpt"),
        Case("`--from` says it is of PyTorch", 6, f"scorer.keras {_SCORER} --from torch", without=NO_TORCH),
    ),
)  # fmt: skip
