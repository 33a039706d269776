"""Tests for checkpoints of models other than Keras 3: a tf.Module, and Keras 2."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.exporter import builders
from tests.exporter.conftest import Finished, read_manifest, without_tried_sizes
from tests.exporter.served import serve_rows
from tests.exporter.test_weights_choice import ROWS, save

pytestmark = [pytest.mark.xdist_group(__name__)]

Export = Callable[..., Finished]


def model_option(name: str) -> tuple[str, ...]:
    return ("--model", f"tests.exporter.builders:{name}", "--batch-sizes", "2")


def test_a_module_is_served_by_its_input_signature(export: Export, tensorflow: None, tmp_path: Path) -> None:
    trained = builders.module()
    source = save(tmp_path / "run", model=trained)
    finished = export(source, tmp_path / "linear", *model_option("module"))
    assert finished.code == 0, finished.err
    assert "2 matched" in finished.out
    signature = read_manifest(tmp_path / "linear/1")["signatures"]["serving_default"]
    assert without_tried_sizes(signature["inputs"]) == {"features": {"dtype": "float32", "shape": [None, 3]}}
    assert list(signature["outputs"]) == ["scores"]
    np.testing.assert_allclose(serve_rows(tmp_path / "linear/1", ROWS), trained(ROWS)["scores"].numpy(), atol=1e-6)


def test_a_module_without_input_signature_is_told_its_inputs(export: Export, tensorflow: None, tmp_path: Path) -> None:
    trained = builders.lazy_module()
    expected = trained(ROWS).numpy()  # creates its variables
    source = save(tmp_path / "run", model=trained)
    finished = export(source, tmp_path / "lazy", *model_option("lazy_module"))
    assert finished.code == 2
    assert "Describe each with --input 'name:dtype[batch,...]'" in finished.err
    text = ("--input", "x:float32[batch,3]", "--output", "y")
    finished = export(source, tmp_path / "lazy", *model_option("lazy_module"), *text)
    assert finished.code == 0, finished.err
    assert list(read_manifest(tmp_path / "lazy/1")["signatures"]["serving_default"]["outputs"]) == ["y"]
    np.testing.assert_allclose(serve_rows(tmp_path / "lazy/1", ROWS), expected, atol=1e-6)


def test_a_module_that_does_not_fit_gets_the_whole_table(export: Export, tensorflow: None, tmp_path: Path) -> None:
    source = save(tmp_path / "run", model=builders.module())
    finished = export(source, tmp_path / "linear", *model_option("module"), "--model-arg", "units=5")
    assert finished.code == 2
    table = " ".join(finished.err.split())
    assert "w shape differs float32[3, 5] float32[3, 2]" in table
    assert "b shape differs float32[5] float32[2]" in table


def test_what_a_module_cannot_have_is_refused(export: Export, tensorflow: None, tmp_path: Path) -> None:
    source = save(tmp_path / "run", model=builders.module())
    finished = export(source, tmp_path / "linear", *model_option("module"), "--compute-dtype", "bfloat16")
    assert (finished.code, "--compute-dtype and --int8 apply only to Keras 3 models" in finished.err) == (2, True)
    finished = export(source, tmp_path / "linear", *model_option("silent_module"))
    assert (finished.code, "without __call__, so that there is nothing to serve" in finished.err) == (7, True)
    finished = export(source, tmp_path / "linear", *model_option("no_model"))
    assert (finished.code, "instead of a Keras model or a tf.Module" in finished.err) == (7, True)


def test_a_keras_2_model_is_served_as_it_is(export: Export, tensorflow: None, tmp_path: Path) -> None:
    trained = builders.keras_2()
    source = save(tmp_path / "run", model=trained)
    finished = export(source, tmp_path / "old", *model_option("keras_2"))
    assert finished.code == 0, finished.err
    np.testing.assert_allclose(serve_rows(tmp_path / "old/1", ROWS), trained(ROWS).numpy(), atol=1e-6)
