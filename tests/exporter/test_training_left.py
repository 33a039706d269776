"""Layers that are left in training mode are told, by name, when a version is written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tf_keras

from tests.exporter import builders, freezable
from tests.exporter.conftest import Finished
from tpuserve_exporter.checks.training_left import find_training

pytestmark = [
    pytest.mark.usefixtures("tensorflow"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras' own, when it saves
]
Export = Callable[..., Finished]


def _export(export: Export, builder: str, folder: Path) -> Finished:
    getattr(freezable, builder)().save_weights(folder / "m.weights.h5")
    model = ("--model", f"tests.exporter.freezable:{builder}", "--batch-sizes", "4")
    return export(folder / "m.weights.h5", folder / "m", *model)


def test_dropout_left_in_training_mode_is_named_before_it_fails_the_comparison(export: Export, tmp_path: Path) -> None:
    finished = _export(export, "dropping", tmp_path)
    assert finished.code == 3
    assert "draws random numbers, in " in finished.out
    assert "/drop_1: no two answers agree" in finished.out
    assert "call it with training=False" in finished.out


def test_a_batch_norm_left_in_training_mode_is_named(export: Export, tmp_path: Path) -> None:
    finished = _export(export, "normalising", tmp_path)
    assert finished.code == 0, finished.err
    assert "changes variables, in " in finished.out
    assert "/norm_1: answers may depend on those before" in finished.out
    assert "a row of serving_default depends on" in finished.out


def test_a_model_as_it_should_be_has_nothing_to_tell(export: Export, tmp_path: Path) -> None:
    builders.tiny().save(tmp_path / "tiny.keras")
    finished = export(tmp_path / "tiny.keras", tmp_path / "m", "--batch-sizes", "1", "--json")
    assert finished.document["warnings"] == []


def _saved(folder: Path, call: Callable[[Any], Any], *variables: Any) -> Path:  # noqa: ANN401 - tensors
    import tensorflow as tf

    module = tf.Module()
    module.variables_of_it = variables
    function = tf.function(lambda x: {"y": call(x)}, autograph=False)
    signature = function.get_concrete_function(tf.TensorSpec([None, 4, 4, 2], tf.float32, name="x"))
    tf.saved_model.save(module, str(folder), signatures=signature)
    return folder


def test_a_fused_batch_norm_in_training_mode_is_named(tmp_path: Path) -> None:
    ones, zeros = np.ones(2, np.float32), np.zeros(2, np.float32)

    def call(x: Any) -> Any:  # noqa: ANN401 - a tensor
        import tensorflow as tf

        return tf.compat.v1.nn.fused_batch_norm(x, ones, zeros, is_training=True, name="tower/norm")[0]

    (told,) = find_training(_saved(tmp_path / "m", call))
    assert told.startswith("batch norm in training mode, tower")


def test_noise_of_a_fixed_seed_is_none_and_any_other_is(tmp_path: Path) -> None:
    import tensorflow as tf

    fixed = _saved(tmp_path / "fixed", lambda x: x + tf.random.stateless_normal([2], seed=[1, 2]))
    assert find_training(fixed) == []
    (told,) = find_training(_saved(tmp_path / "other", lambda x: x + tf.random.normal([2], name="noise")))
    assert "draws random numbers, in noise" in told


def test_dropout_of_keras_2_is_named(tmp_path: Path) -> None:
    layer = tf_keras.layers.Dropout(0.5, name="drop")
    (told,) = find_training(_saved(tmp_path / "m", lambda x: layer(x, training=True)))
    assert "draws random numbers, in drop" in told
