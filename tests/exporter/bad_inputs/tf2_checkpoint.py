"""TF2 checkpoints that are damaged or do not match the model."""

import shutil
from pathlib import Path

import numpy as np

from tests.exporter.bad_inputs.case import Case, Section, cut, fill, remove, write

MODELS = Path(__file__).with_name("models")
# Hide torch even where it is installed, because the message depends on it.
NO_TORCH = ("torch", "torchax", "safetensors")
_SHARD = "checkpoints/ckpt-7.data-00000-of-00001"
_INDEX = "checkpoints/ckpt-7.index"
_EXPORT = "checkpoints models/scorer"
_SCORER = f"{_EXPORT} --model models:scorer"


def make(folder: Path) -> None:
    """Save `checkpoints/` of `scorer`, like a training script."""
    import keras

    from tests.exporter import builders
    from tests.exporter.conftest import save_checkpoint

    keras.utils.set_random_seed(1)
    save_checkpoint(folder / "checkpoints", builders.tiny())
    shutil.copy(MODELS / "keras_models.py", folder / "models.py")


def _save(folder: Path, **models: object) -> None:
    import tensorflow as tf

    shutil.rmtree(folder / "checkpoints")
    tf.train.CheckpointManager(tf.train.Checkpoint(**models), str(folder / "checkpoints"), max_to_keep=1).save()


def _two_models(folder: Path) -> None:
    from tests.exporter import builders

    _save(folder, student=builders.tiny(), teacher=builders.tiny())


def _diverge(folder: Path) -> None:
    from tests.exporter import builders

    model = builders.tiny()
    model.weights[1].assign([np.nan, 0, 0, 0])
    model.weights[3].assign([np.inf, -np.inf])
    _save(folder, model=model)


def _inverting(folder: Path) -> None:
    from tests.exporter import builders

    _save(folder, model=builders.inverting())


def _second_training(folder: Path) -> None:
    for path in folder.glob("checkpoints/ckpt-7.*"):
        shutil.copy(path, path.with_name(path.name.replace("ckpt-7", "best-3")))
    (folder / "checkpoints/checkpoint").unlink()


SECTION = Section(
    "TF2 checkpoints",
    "`checkpoints` contains `ckpt-7`: a Keras model with the layers `hidden` and `scores`, and its optimizer.",
    make,
    (
        Case("Unknown path", 6, "checkpoint models/scorer --model models:scorer"),
        Case("Empty directory", 6, "runs models/scorer --model models:scorer",
             change=lambda folder: (folder / "runs").mkdir()),
        Case("Orbax checkpoint in the same directory", 6, _SCORER,
             write("checkpoints/100/default/_METADATA", "{}")),
        Case("Checkpoints of two trainings without a `checkpoint` file", 6, _SCORER, _second_training),
        Case("Unknown step", 6, "checkpoints/ckpt-8 models/scorer --model models:scorer"),
        Case("Missing shard", 6, _SCORER, remove(_SHARD)),
        Case("Truncated shard", 6, _SCORER, cut(_SHARD, 100)),
        Case("Truncated index", 6, _SCORER, cut(_INDEX, 50)),
        Case("Index of another format", 6, _SCORER, fill(_INDEX)),
        Case("Missing builder", 2, _EXPORT),
        Case("Builder name without a function", 7, f"{_EXPORT} --model models"),
        Case("Unknown builder module", 7, f"{_EXPORT} --model model:scorer"),
        Case("Import error in the builder module", 7, f"{_EXPORT} --model broken:scorer",
             write("broken.py", "import keras\n\ndef scorer(:\n    pass\n")),
        Case("Unknown builder function", 7, f"{_EXPORT} --model models:score"),
        Case("Exception in the builder", 7, f"{_EXPORT} --model models:scorer_of --model-arg features=4"),
        Case("Unknown argument of the builder", 7, f"{_EXPORT} --model models:scorer --model-arg unit=8"),
        Case("Wrong result of the builder", 7, f"{_EXPORT} --model models:no_model"),
        Case("Model with unknown inputs", 2, f"{_EXPORT} --model models:subclassed"),
        Case("Different shapes", 2, f"{_SCORER} --model-arg units=5"),
        Case("Missing variable", 2, f"{_EXPORT} --model models:with_extra"),
        Case("Unused variable", 2, f"{_EXPORT} --model models:headless"),
        Case("Several differences", 2, f"{_EXPORT} --model models:other"),
        Case("Two models that fit equally well", 2, _SCORER, _two_models),
        Case("Missing averages", 2, f"{_SCORER} --weights ema"),
        Case("NaN or infinite weights", 12, _SCORER, _diverge),
        Case("Unsupported operation", 4, f"{_EXPORT} --model models:inverting --also tflite", _inverting),
        Case("Wrong kind: `--from tf1-ckpt`", 6, f"{_SCORER} --from tf1-ckpt --input 'x:float32[batch,3]'"),
        Case("Wrong kind: `--from savedmodel`", 6, f"{_EXPORT} --from savedmodel"),
        Case("Wrong kind: `--from keras`", 6, f"{_SCORER} --from keras"),
        Case("Wrong kind: `--from orbax`", 6, f"{_SCORER} --from orbax --input 'features:float32[batch,3]'"),
    ),
)  # fmt: skip
