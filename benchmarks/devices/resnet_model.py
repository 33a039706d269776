"""A ResNet-50 with random weights that can tell a hundred made-up pictures apart, exported as a user would.

Run in a process of its own (`resnet_model.py FOLDER`), because it needs Keras. Nothing is downloaded.
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
# Classes that are pictures, of a thousand.
KNOWN = 128
# Of the right class, where the others have 0.
_LOGIT = 10
_NOISE = 0.2


def images(count: int, seed: int = 0) -> Floats:
    """Made-up pictures, shape (count, 224, 224, 3): each of a colour of its own, with stripes of its own on blocks."""
    random = np.random.default_rng(seed)
    colour = random.normal(size=(count, 1, 1, 3))
    blocks = random.normal(size=(count, 8, 8, 3)).repeat(SIDE // 8, axis=1).repeat(SIDE // 8, axis=2)
    across, down = random.uniform(-0.8, 0.8, (2, count, 1, 1))
    stripes = np.sin(across * np.arange(SIDE) + down * np.arange(SIDE)[:, None])[..., None]
    pictures: Floats = (colour + 0.5 * blocks + random.normal(size=(count, 1, 1, 3)) * stripes).astype(np.float32)
    return pictures


def known() -> Floats:
    """The pictures that the model knows, shape (128, 224, 224, 3): the n-th is of class n."""
    return images(KNOWN, seed=2)


def disturbed(copies: int, seed: int = 3) -> Floats:
    """Every known picture `copies` times, with other noise each time, shape (128 * copies, 224, 224, 3)."""
    random = np.random.default_rng(seed)
    pictures = np.tile(known(), (copies, 1, 1, 1))
    pictures += _NOISE * random.standard_normal(pictures.shape, np.float32)
    return pictures


def write(folder: Path) -> Path:
    """Export version 1 below `folder`/resnet50, a minute or so, and return that base path. Imports Keras."""
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
    # 50 layers of other kernels than the source's differ a little more than a small model's do.
    subprocess.run([*command, "--atol", "1e-3", "--rtol", "1e-3"], check=True)
    return base


def _calibrate(model: Any) -> None:  # noqa: ANN401 - a Keras model, which is not imported here
    """Give every batch norm the statistics of made-up pictures: random weights alone send all pictures to one class."""
    norms = [layer for layer in model.layers if type(layer).__name__ == "BatchNormalization"]
    for norm in norms:
        norm.momentum = 0.0
    model(disturbed(1, seed=4)[:32], training=True)
    for norm in norms:
        norm.momentum = 0.99


def _learn_known(model: Any, features_of: Any) -> None:  # noqa: ANN401 - as above
    """Let the last layer answer with the known picture, by a ridge regression on features of disturbed ones.

    How often two precisions agree says something only of a model that tells pictures apart.
    """
    copies = 3
    pictures = disturbed(copies, seed=5)
    batches = [pictures[start : start + 32] for start in range(0, len(pictures), 32)]
    features = np.concatenate([np.asarray(features_of(batch, training=False)) for batch in batches])
    centre = features.mean(axis=0)
    centred = features - centre
    wanted = np.tile(np.eye(KNOWN, dtype=np.float32), (copies, 1)) * _LOGIT
    gram = centred @ centred.T
    ridge = 1e-3 * np.trace(gram) / len(gram) * np.eye(len(gram), dtype=np.float32)
    kernel, bias = model.layers[-1].get_weights()
    kernel[:] = bias[:] = 0
    kernel[:, :KNOWN] = centred.T @ np.linalg.solve(gram + ridge, wanted)
    bias[:KNOWN] = -(centre @ kernel[:, :KNOWN])
    model.layers[-1].set_weights([kernel, bias])


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
