"""Tests that the export refuses models that call Python, because only the exporting process could run them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.exporter.conftest import Finished

pytestmark = pytest.mark.usefixtures("tensorflow")
Export = Callable[..., Finished]


def save_module(folder: Path, *, served: bool) -> Path:
    """Save a SavedModel with a Python function in its signature (`served`) or outside of it."""
    import tensorflow as tf

    def clip(x: Any) -> Any:  # noqa: ANN401 - a tensor
        return tf.ensure_shape(tf.numpy_function(lambda a: np.clip(a, 0, 1), [x], tf.float32, name="clip"), [None, 3])

    module = tf.Module()
    spec = [tf.TensorSpec([None, 3], tf.float32, name="x")]
    module.clip = tf.function(clip, input_signature=spec)
    module.plain = tf.function(lambda x: {"y": x * 2}, input_signature=spec)
    module.calls = tf.function(lambda x: {"y": module.clip(x) * 2}, input_signature=spec)
    tf.saved_model.save(module, str(folder), signatures=module.calls if served else module.plain)
    return folder


def test_a_python_function_in_what_is_served_is_named(export: Export, tmp_path: Path) -> None:
    finished = export(save_module(tmp_path / "saved", served=True), tmp_path / "m")
    assert finished.code == 4
    message = " ".join(finished.err.split())
    assert "the outputs depend on Python functions: PyFunc (node clip)" in message
    assert not (tmp_path / "m").exists()


def test_a_python_function_beside_what_is_served_does_no_harm(export: Export, tmp_path: Path) -> None:
    finished = export(save_module(tmp_path / "saved", served=False), tmp_path / "m", "--batch-sizes", "1")
    assert finished.code == 0, finished.err
