"""Tests for --freeze on the command line: its results, messages and refusals."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.exporter import builders, freezable
from tests.exporter.conftest import Finished, read_manifest

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # from Keras' saving code
Export = Callable[..., Finished]


@pytest.fixture(scope="module")
def convolutions(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("freezing") / "convolutions.keras"
    freezable.convolutions().save(path)
    return path


def test_a_frozen_model_is_published_and_says_so(export: Export, convolutions: Path, tmp_path: Path) -> None:
    finished = export(convolutions, tmp_path / "m", "--freeze", "--batch-sizes", "1,4")
    assert finished.code == 0, finished.err
    assert "6 batch norm(s) or scale(s) folded into kernels" in finished.out
    assert read_manifest(tmp_path / "m/1")["frozen"] == {"folded": 6, "computed": 2, "dropped": {}}
    names = {one["name"] for one in export(convolutions, tmp_path / "m", "--freeze", "--json").document["variables"]}
    assert "conv2d/kernel/folded" in names
    assert not any("moving" in name for name in names if "computed" not in name)


def test_an_existing_saved_model_is_frozen(export: Export, convolutions: Path, tmp_path: Path) -> None:
    assert export(convolutions, tmp_path / "m", "--batch-sizes", "1,4").code == 0
    finished = export(tmp_path / "m/1", tmp_path / "frozen", "--freeze", "--batch-sizes", "1,4")
    assert finished.code == 0, finished.err
    manifest = read_manifest(tmp_path / "frozen/1")
    assert manifest["frozen"]["folded"] == 6
    assert manifest["source"]["kind"] == "savedmodel"
    assert list(manifest["signatures"]["serving_default"]["inputs"]) == ["image"]


def test_a_saved_model_without_that_signature_is_refused(export: Export, convolutions: Path, tmp_path: Path) -> None:
    assert export(convolutions, tmp_path / "m", "--batch-sizes", "1").code == 0
    finished = export(tmp_path / "m/1", tmp_path / "frozen", "--freeze", "--signature-name", "other")
    assert finished.code == 2
    assert "no signature 'other', only serving_default" in finished.err
    assert "--signature-name" in finished.err


def test_what_changes_cannot_be_frozen(export: Export, tmp_path: Path) -> None:
    freezable.counting().save_weights(tmp_path / "counting.weights.h5")
    model = ("--model", "tests.exporter.freezable:counting")
    finished = export(tmp_path / "counting.weights.h5", tmp_path / "m", "--freeze", *model)
    assert finished.code == 4
    assert "scores" in finished.err
    assert not (tmp_path / "m").exists()


def test_a_model_with_nothing_to_fold_is_published(export: Export, tmp_path: Path) -> None:
    builders.tiny().save(tmp_path / "tiny.keras")
    finished = export(tmp_path / "tiny.keras", tmp_path / "m", "--freeze", "--batch-sizes", "1")
    assert finished.code == 0, finished.err
    assert "frozen: nothing to fold" in finished.out


def test_a_frozen_model_takes_other_signatures_too(export: Export, convolutions: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "samples.npz", image=np.random.default_rng(0).random((3, 8, 8, 3), np.float32))
    signatures = ("--signature", "serving_default=tensor", "--signature", "photo=image_bytes,scale=0..1")
    finished = export(convolutions, tmp_path / "m", "--freeze", "--batch-sizes", "1,2", *signatures)
    assert finished.code == 0, finished.err
    assert read_manifest(tmp_path / "m/1")["signatures"].keys() == {"serving_default", "photo"}
