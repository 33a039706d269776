"""A ResNet-50 with random weights that classifies 128 synthetic images, exported with the exporter's command.

Run in a separate process (`resnet_model.py FOLDER`), because it needs Keras. Downloads nothing.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]

NAME, INPUT, OUTPUT = "resnet50", "image", "probabilities"
SIDE = 224
BATCH_SIZES = (1, 2, 4, 8)
_SEED = 50
# Number of classes with an image, among a thousand.
KNOWN = 128
# Logit of the correct class. The others have 0.
_LOGIT = 10
_NOISE = 0.2


def images(count: int, seed: int = 0) -> Floats:
    """Return synthetic images, shape (count, 224, 224, 3), each with its own colour, blocks and stripes."""
    random = np.random.default_rng(seed)
    colour = random.normal(size=(count, 1, 1, 3))
    blocks = random.normal(size=(count, 8, 8, 3)).repeat(SIDE // 8, axis=1).repeat(SIDE // 8, axis=2)
    across, down = random.uniform(-0.8, 0.8, (2, count, 1, 1))
    stripes = np.sin(across * np.arange(SIDE) + down * np.arange(SIDE)[:, None])[..., None]
    pictures: Floats = (colour + 0.5 * blocks + random.normal(size=(count, 1, 1, 3)) * stripes).astype(np.float32)
    return pictures


def known() -> Floats:
    """Return the images that the model knows, shape (128, 224, 224, 3). Image n has class n."""
    return images(KNOWN, seed=2)


def disturbed(copies: int, seed: int = 3) -> Floats:
    """Return every known image `copies` times with different noise, shape (128 * copies, 224, 224, 3)."""
    random = np.random.default_rng(seed)
    pictures = np.tile(known(), (copies, 1, 1, 1))
    pictures += _NOISE * random.standard_normal(pictures.shape, np.float32)
    return pictures


def write(folder: Path) -> Path:
    """Export version 1 below `folder`/resnet50 in about a minute, and return that base path. Imports Keras."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras

    keras.utils.set_random_seed(_SEED)
    model = keras.applications.ResNet50(weights=None)
    _calibrate(model)
    _learn_known(model, keras.Model(model.inputs, model.layers[-2].output))
    source = folder / "resnet50.keras"
    model.save(source)
    base = folder / NAME
    command = [str(Path(sys.executable).with_name("tpuserve")), "export", str(source), str(base)]
    command += ["--input", INPUT, "--output", OUTPUT, "--batch-sizes", ",".join(map(str, BATCH_SIZES))]
    # 50 layers with kernels other than the source's differ slightly more than those of a small model.
    subprocess.run([*command, "--atol", "1e-3", "--rtol", "1e-3"], check=True)
    return base


def _calibrate(model: Any) -> None:  # noqa: ANN401 - a Keras model, which is not imported here
    """Give every batch norm the statistics of synthetic images. Random weights alone map all images to one class."""
    norms = [layer for layer in model.layers if type(layer).__name__ == "BatchNormalization"]
    for norm in norms:
        norm.momentum = 0.0
    model(disturbed(1, seed=4)[:32], training=True)
    for norm in norms:
        norm.momentum = 0.99


def _learn_known(model: Any, features_of: Any) -> None:  # noqa: ANN401 - as above
    """Fit the last layer to the known images by ridge regression on features of noisy copies.

    Agreement between two precisions is meaningful only for a model that distinguishes images.
    """
    copies = 3
    pictures = disturbed(copies, seed=5)
    batches = [pictures[start : start + 32] for start in range(0, len(pictures), 32)]
    features = np.concatenate([np.asarray(features_of(batch, training=False)) for batch in batches])
    centre = features.mean(axis=0)
    centred = features - centre
    targets = np.tile(np.eye(KNOWN, dtype=np.float32), (copies, 1)) * _LOGIT
    gram = centred @ centred.T
    ridge = 1e-3 * np.trace(gram) / len(gram) * np.eye(len(gram), dtype=np.float32)
    kernel, bias = model.layers[-1].get_weights()
    kernel[:] = bias[:] = 0
    kernel[:, :KNOWN] = centred.T @ np.linalg.solve(gram + ridge, targets)
    bias[:KNOWN] = -(centre @ kernel[:, :KNOWN])
    model.layers[-1].set_weights([kernel, bias])


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
