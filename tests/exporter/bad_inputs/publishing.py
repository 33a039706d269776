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
        Case("The version is taken", 5, f"{_EXPORT} --version 3", write("models/scorer/3/saved_model.pb", "theirs")),
        Case("A file is where the directory should be", 5, _EXPORT, write("models", "a file")),
        Case("A file cannot be that large", 5, "wide.h5 models/wide --batch-sizes 1", file_size_bytes=900_000),
        Case("The temporary directory cannot take the source", 5, "wide.keras models/wide", file_size_bytes=900_000),
        Case("The store's library is not installed", 10, "scorer.keras gs://bucket/models/scorer", without=("gcsfs",)),
        Case("Sample inputs lack an input", 9, f"{_EXPORT} --check samples.npz",
             lambda folder: np.savez(folder / "samples.npz", image=np.ones((2, 3)))),
        Case("Sample inputs have another shape", 9, f"{_EXPORT} --check samples.npz",
             lambda folder: np.savez(folder / "samples.npz", features=np.ones((2, 4)))),
        Case("Sample inputs are damaged", 9, f"{_EXPORT} --check samples.npz", write("samples.npz", "PK and no more")),
        Case("It answers otherwise than the source", 3,
             "unsteady.weights.h5 models/unsteady --model models:unsteady --batch-sizes 1,2"),
    ),
)  # fmt: skip
