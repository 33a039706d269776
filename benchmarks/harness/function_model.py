"""Models of one function from a float32 tensor to another, as SavedModels with a manifest."""

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.harness import mlp_model


def write_function(base: Path, shape: tuple[int | None, ...], function: Callable[[ModuleType, Any], Any]) -> Path:
    """Write version 1 below `base` and return its directory. Imports TensorFlow.

    `function` takes the module `tensorflow` and a tensor of shape (n, *shape), in which None is any size. The names of
    input and output are those of the MLP.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    module = tf.Module()
    spec = tf.TensorSpec((None, *shape), tf.float32, name=mlp_model.INPUT)
    module.serve = tf.function(lambda x: {mlp_model.OUTPUT: function(tf, x)}, input_signature=[spec])
    version = base / str(mlp_model.VERSION)
    tf.saved_model.save(module, str(version), signatures={mlp_model.SIGNATURE: module.serve})
    mlp_model.write_manifest(version, (mlp_model.SIGNATURE,))
    return version
