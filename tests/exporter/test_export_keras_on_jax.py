"""Tests that TensorFlow serves Keras 3 models that were trained on JAX."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.exporter import builders
from tests.exporter.conftest import Finished, read_manifest
from tests.exporter.served import call

pytestmark = [
    pytest.mark.xdist_group("exporter"),
    # Keras 3.15 passes its variables to h5py, and numpy 2 warns about it.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

Export = Callable[..., Finished]
ROWS = np.random.default_rng(3).random((2, 3)).astype(np.float32)

_TRAIN = """
import sys, keras, numpy as np
assert keras.backend.backend() == "jax"
keras.utils.set_random_seed(1)
features = keras.Input((3,), name="features")
x = keras.layers.BatchNormalization()(keras.layers.Dense(4, activation="gelu")(features))
model = keras.Model(features, keras.layers.Dense(2, name="scores")(x))
model.compile("adam", loss="mse")
rows = np.load(sys.argv[1])
model.fit(rows, np.ones((2, 2), np.float32), epochs=3, verbose=0)
model.save(sys.argv[2])
np.save(sys.argv[3], model.predict(rows, verbose=0))
"""


def test_a_keras_file_trained_on_jax_answers_as_it_did_there(export: Export, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    files = [str(tmp_path / name) for name in ("rows.npy", "trained.keras", "answers.npy")]
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run([sys.executable, "-c", _TRAIN, *files], env=environment, check=True, timeout=100)
    np.savez(tmp_path / "check.npz", features=ROWS)
    finished = export(
        tmp_path / "trained.keras", tmp_path / "base", "--batch-sizes", "2", "--check", tmp_path / "check.npz"
    )
    assert finished.code == 0, finished.err
    assert read_manifest(tmp_path / "base/1")["source"]["kind"] == "keras"
    served = call(tmp_path / "base/1", features=ROWS)
    np.testing.assert_allclose(served["scores"], np.load(tmp_path / "answers.npy"), atol=1e-5)


def test_a_layer_that_computes_with_jax_itself_is_told_of(export: Export, tmp_path: Path) -> None:
    builders.tiny().save_weights(tmp_path / "sine.weights.h5")
    finished = export(tmp_path / "sine.weights.h5", tmp_path / "base", "--model", "tests.exporter.flax_builders:sine")
    assert finished.code == 7
    assert "makes a layer that computes with JAX itself, but Keras runs on TensorFlow here" in finished.err
    assert "keras.ops" in finished.err


_EXPORT_FROM_JAX = """
import sys, keras
from tpuserve_exporter import export
from tpuserve_exporter.errors import OptionConflict
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
try:
    export(model, sys.argv[1], progress=False)
except OptionConflict as error:
    print(error)
"""


def test_a_process_with_keras_on_jax_is_told_to_save_the_model(tmp_path: Path) -> None:
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    arguments = [sys.executable, "-c", _EXPORT_FROM_JAX, str(tmp_path / "base")]
    finished = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert finished.stdout.startswith("Keras runs on jax in this process"), finished.stderr
    assert not (tmp_path / "base").exists()
