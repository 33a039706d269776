"""Tests for --int8: 8-bit weights of Keras models with a separate tolerance, and its limits."""

from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.exporter import builders, freezable
from tests.exporter.conftest import Finished, read_manifest

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # from Keras' saving code
Export = Callable[..., Finished]


def test_a_checkpoint_is_quantised_after_it_is_restored(
    export: Export, digits_checkpoint: Path, tmp_path: Path
) -> None:
    model = ("--model", "examples.digits.model:build", "--batch-sizes", "1,8", "--int8")
    finished = export(digits_checkpoint, tmp_path / "digits", *model, "--verbose")
    assert finished.code == 0, finished.out
    manifest = read_manifest(tmp_path / "digits/1")
    quantized, parity = manifest["quantized"], manifest["parity"]
    assert (quantized["mode"], quantized["layers"]) == ("int8", 2)
    assert quantized["bytes_after"] < 0.5 * quantized["bytes_before"]
    assert (parity["atol"], parity["rtol"]) == (5e-2, 5e-2)
    assert parity["max_abs_difference"] > 1e-4, "compared with the model as it was trained"
    assert "MB of weights became" in finished.out
    assert "the same first class in 90% of rows" in finished.out


def test_int8_weights_stay_so_when_they_are_frozen(export: Export, tmp_path: Path) -> None:
    features = keras.Input((256,), name="features")
    hidden = keras.layers.Dense(300, name="hidden")(features)
    model = keras.Model(features, keras.layers.BatchNormalization(name="scores")(hidden))
    freezable.settle(model).save(tmp_path / "m.keras")
    finished = export(tmp_path / "m.keras", tmp_path / "m", "--int8", "--freeze", "--batch-sizes", "2", "--json")
    assert finished.code == 0, finished.out
    kept = {one["name"]: one["model"] for one in finished.document["variables"]}
    assert "int8[256, 300]" in kept.values()
    assert not any("float32[256" in one for one in kept.values())


def test_a_model_without_dense_layers_is_refused(export: Export, tmp_path: Path) -> None:
    image = keras.Input((4, 4, 1), name="image")
    keras.Model(image, keras.layers.Conv2D(2, 3, name="scores")(image)).save(tmp_path / "m.keras")
    finished = export(tmp_path / "m.keras", tmp_path / "m", "--int8")
    assert finished.code == 2
    assert "Dense, EinsumDense and Embedding" in finished.err
    assert "Conv2D" in finished.err


def test_other_kinds_of_sources_are_refused(export: Export, tmp_path: Path) -> None:
    builders.tiny().save(tmp_path / "tiny.keras")
    assert export(tmp_path / "tiny.keras", tmp_path / "m", "--batch-sizes", "1").code == 0
    finished = export(tmp_path / "m/1", tmp_path / "n", "--int8")
    assert finished.code == 2
    assert "quantizes only Keras models, but 1 is a SavedModel" in finished.err
    lite = export(tmp_path / "tiny.keras", tmp_path / "n", "--int8", "--also", "tflite")
    assert lite.code == 2
    assert "--int8 or --also tflite" in lite.err


def test_another_class_in_too_many_rows_is_no_parity(export: Export, tmp_path: Path) -> None:
    """Check scores that are all within the tolerance, but whose largest is random."""
    features = keras.Input((64,), name="features")
    model = keras.Model(features, keras.layers.Dense(50, name="scores")(features))
    random = np.random.default_rng(1)
    model.set_weights([random.normal(1.0, 1e-3, (64, 50)), np.zeros(50)])
    model.save(tmp_path / "m.keras")
    finished = export(tmp_path / "m.keras", tmp_path / "m", "--int8", "--batch-sizes", "8")
    assert finished.code == 3
    assert "agrees with the source's first class in too few rows (scores: " in finished.err
    assert "--check" in finished.err
    assert export(tmp_path / "m.keras", tmp_path / "m", "--int8", "--batch-sizes", "8", "--atol", "0.5").code == 0
