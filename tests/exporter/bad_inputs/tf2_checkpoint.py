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
        Case("There is no such path", 6, "checkpoint models/scorer --model models:scorer"),
        Case("The directory is empty", 6, "runs models/scorer --model models:scorer",
             change=lambda folder: (folder / "runs").mkdir()),
        Case("An Orbax checkpoint lies in the same directory", 6, _SCORER,
             write("checkpoints/100/default/_METADATA", "{}")),
        Case("Two trainings share a directory, and its `checkpoint` file is gone", 6, _SCORER, _second_training),
        Case("There is no such step", 6, "checkpoints/ckpt-8 models/scorer --model models:scorer"),
        Case("A shard is missing", 6, _SCORER, remove(_SHARD)),
        Case("A shard is cut short", 6, _SCORER, cut(_SHARD, 100)),
        Case("The index is cut short", 6, _SCORER, cut(_INDEX, 50)),
        Case("The index is something else", 6, _SCORER, fill(_INDEX)),
        Case("No builder is named", 2, _EXPORT),
        Case("The builder's name has no function", 7, f"{_EXPORT} --model models"),
        Case("The builder's module is not found", 7, f"{_EXPORT} --model model:scorer"),
        Case("The builder's module cannot be imported", 7, f"{_EXPORT} --model broken:scorer",
             write("broken.py", "import keras\n\ndef scorer(:\n    pass\n")),
        Case("The builder's function is not found", 7, f"{_EXPORT} --model models:score"),
        Case("The builder raises", 7, f"{_EXPORT} --model models:scorer_of --model-arg features=4"),
        Case("The builder takes other arguments", 7, f"{_EXPORT} --model models:scorer --model-arg unit=8"),
        Case("The builder returns something else", 7, f"{_EXPORT} --model models:no_model"),
        Case("The model does not know its inputs", 2, f"{_EXPORT} --model models:subclassed"),
        Case("Shapes differ", 2, f"{_SCORER} --model-arg units=5"),
        Case("A variable is missing", 2, f"{_EXPORT} --model models:with_extra"),
        Case("A variable is not used", 2, f"{_EXPORT} --model models:headless"),
        Case("Several things differ at once", 2, f"{_EXPORT} --model models:other"),
        Case("Two models fit alike", 2, _SCORER, _two_models),
        Case("There are no averages", 2, f"{_SCORER} --weights ema"),
        Case("Weights are NaN or infinite", 12, _SCORER, _diverge),
        Case("An operation is not to be had", 4, f"{_EXPORT} --model models:inverting --also tflite", _inverting),
        Case("`--from` says it is of TensorFlow 1", 6, f"{_SCORER} --from tf1-ckpt --input 'x:float32[batch,3]'"),
        Case("`--from` says it is a SavedModel", 6, f"{_EXPORT} --from savedmodel"),
        Case("`--from` says it is of Keras", 6, f"{_SCORER} --from keras"),
        Case("`--from` says it is of Orbax", 6, f"{_SCORER} --from orbax --input 'features:float32[batch,3]'"),
    ),
)  # fmt: skip
