"""The benchmark's SavedModel as a function or as weights, for servers that cannot load a SavedModel."""

import os
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]

FEATURES, CLASSES = 64, 10
INPUT, OUTPUT, NAME = "x", "y", "mlp"
MAX_BATCH = 32


def load(directory: str) -> Callable[[Floats], Floats]:
    """Return the default signature, from (n, 64) to (n, 10). Calls it once, so that the first request is fast."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    model = tf.saved_model.load(directory)
    signature = model.signatures["serving_default"]

    def predict(x: Floats) -> Floats:
        y: Floats = signature(x=tf.constant(x))[OUTPUT].numpy()
        return y

    # The loaded object owns the variables, so it must live as long as the function.
    predict.model = model  # type: ignore[attr-defined]
    for rows in (1, MAX_BATCH):
        predict(np.zeros((rows, FEATURES), np.float32))
    return predict


def weights(directory: str) -> tuple[Floats, Floats]:
    """Return the weights of both layers, shapes (64, 128) and (128, 10)."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    saved = tf.train.load_checkpoint(f"{directory}/variables/variables")
    hidden, out = (saved.get_tensor(f"{name}/.ATTRIBUTES/VARIABLE_VALUE") for name in ("hidden", "out"))
    return hidden, out
