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


def _colours(folder: Path) -> None:
    from tests.exporter.bad_inputs.models import keras_models

    model = keras_models.colours("red", "red", "green")
    model.save(folder / "colours.keras")
    model.save_weights(folder / "colours.weights.h5")


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
        Case("Truncated archive", 6, f"scorer.keras {_OUT}", cut("scorer.keras", 500)),
        Case("Archive of another format", 6, f"scorer.keras {_OUT}", fill("scorer.keras")),
        Case("Truncated .h5 file", 6, f"scorer.h5 {_OUT}", cut("scorer.h5", 3000)),
        Case(".weights.h5 file of another format", 6, f"scorer.weights.h5 {_SCORER}", fill("scorer.weights.h5")),
        Case("File with only weights", 2, f"scorer.weights.h5 {_OUT}"),
        Case("Wrong result of the builder", 7, f"scorer.keras {_OUT} --model models:no_model"),
        Case("Different shapes", 2, f"scorer.keras {_SCORER} --model-arg units=5"),
        Case("Missing variable in an .h5 file", 2, f"scorer.h5 {_OUT} --model models:with_extra"),
        Case("Missing variable in a .weights.h5 file", 2,
             f"scorer.weights.h5 {_OUT} --model models:with_extra"),
        Case("Unused variable", 2, f"scorer.keras {_OUT} --model models:headless"),
        Case("Several differences", 2, f"scorer.h5 {_OUT} --model models:other"),
        Case("Another vocabulary", 2, f"colours.keras {_OUT} --model models:other_colours", _colours),
        Case("Vocabulary that the file does not have", 2,
             f"colours.weights.h5 {_OUT} --model models:colours", _colours),
        Case("Unregistered class", 6, f"doubled.keras {_OUT}", _unregistered("doubled.keras")),
        Case("Unregistered class in an .h5 file", 6, f"doubled.h5 {_OUT}", _unregistered("doubled.h5")),
        Case("Lambda layer", 11, f"twice.keras {_OUT}", _lambda("twice.keras")),
        Case("Lambda layer in an .h5 file", 11, f"twice.h5 {_OUT}", _lambda("twice.h5")),
        Case("NaN weights", 12, f"scorer.keras {_OUT}", _diverge),
        Case("Missing averages", 2, f"scorer.weights.h5 {_SCORER} --weights ema"),
        Case("Keras 2 file without Keras 2", 10, f"old.keras {_OUT}", _keras_2, without=("tf_keras",)),
        Case("Wrong shape in `--input`", 2, f"scorer.keras {_OUT} --input 'features:float32[batch,4]'"),
        Case("Wrong kind: `--from tf2-ckpt`", 6, f"scorer.keras {_SCORER} --from tf2-ckpt"),
        Case("Wrong kind: `--from torch`", 6, f"scorer.keras {_SCORER} --from torch", without=NO_TORCH),
    ),
)  # fmt: skip
