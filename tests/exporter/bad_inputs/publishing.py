"""Valid sources whose version cannot be written or checked."""

import shutil
from pathlib import Path

import numpy as np

from tests.exporter.bad_inputs.case import Case, Section, write
from tests.exporter.bad_inputs.tf2_checkpoint import MODELS

_EXPORT = "scorer.keras models/scorer --batch-sizes 1,2"


def make(folder: Path) -> None:
    """Save `scorer.keras` and a model of 1.2 MB."""
    import keras

    from tests.exporter import builders

    keras.utils.set_random_seed(1)
    keras.backend.clear_session()
    builders.tiny().save(folder / "scorer.keras")
    wide = builders.tiny(units=100_000)
    wide.save(folder / "wide.keras")
    wide.save(folder / "wide.h5")
    builders.unsteady().save_weights(folder / "unsteady.weights.h5")
    shutil.copy(MODELS / "keras_models.py", folder / "models.py")


SECTION = Section(
    "Publishing and checking",
    "`scorer.keras` is undamaged, and takes `features`, float32 [batch, 3].",
    make,
    (
        Case("Existing version", 5, f"{_EXPORT} --version 3", write("models/scorer/3/saved_model.pb", "theirs")),
        Case("File instead of the base directory", 5, _EXPORT, write("models", "a file")),
        Case("File larger than the limit", 5, "wide.h5 models/wide --batch-sizes 1", file_size_bytes=900_000),
        Case("Source larger than the temporary directory", 5, "wide.keras models/wide", file_size_bytes=900_000),
        Case("Missing library of the store", 10, "scorer.keras gs://bucket/models/scorer", without=("gcsfs",)),
        Case("Missing input in the samples", 9, f"{_EXPORT} --check samples.npz",
             lambda folder: np.savez(folder / "samples.npz", image=np.ones((2, 3)))),
        Case("Wrong shape in the samples", 9, f"{_EXPORT} --check samples.npz",
             lambda folder: np.savez(folder / "samples.npz", features=np.ones((2, 4)))),
        Case("Damaged samples", 9, f"{_EXPORT} --check samples.npz", write("samples.npz", "PK and no more")),
        Case("Answers that differ from the source", 3,
             "unsteady.weights.h5 models/unsteady --model models:unsteady --batch-sizes 1,2"),
    ),
)  # fmt: skip
