"""Tests that the digits example trains like on TPU: it learns, resumes, and does not wait for a missing TPU."""

import os
from pathlib import Path

import numpy as np
import pytest

from examples.digits import data
from examples.digits.train import find_tpu, train

pytestmark = [pytest.mark.xdist_group(__name__)]


@pytest.mark.slow
def test_training_reaches_97_percent_on_held_out_digits(
    tensorflow: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, epochs=15, seed=3) >= 0.97
    assert "epoch 15/15" in capsys.readouterr().out
    assert len(list(tmp_path.glob("*.index"))) == 3


def test_training_goes_on_from_a_checkpoint_and_ends_at_once_when_done(
    tensorflow: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, epochs=1, seed=1)
    train(tmp_path, epochs=2, seed=1)
    resumed = capsys.readouterr().out
    assert "resuming from ckpt-21" in resumed
    assert resumed.count("epoch  1/") == 1
    accuracy = train(tmp_path, epochs=2, seed=1)
    assert "epoch" not in capsys.readouterr().out
    assert accuracy > 0.8
    assert (tmp_path / "ckpt-42.index").exists()
    assert not (tmp_path / "ckpt-63.index").exists()


def test_the_split_is_fixed_and_does_not_overlap() -> None:
    (first, held_out), (again, _) = data.load(), data.load()
    np.testing.assert_array_equal(first.images, again.images)
    assert (first.images.shape, held_out.images.shape) == ((1347, 8, 8, 1), (450, 8, 8, 1))
    assert (str(first.images.dtype), first.images.min(), first.images.max()) == ("float32", 0.0, 1.0)
    assert np.bincount(held_out.labels).min() >= 40
    seen = {image.tobytes() for image in first.images}
    assert sum(image.tobytes() in seen for image in held_out.images) == 0


def test_a_named_tpu_is_taken_and_none_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"):
        monkeypatch.delenv(name, raising=False)
    if not any(os.path.exists(f"/dev/accel{chip}") or os.path.exists(f"/dev/vfio/{chip}") for chip in range(8)):
        assert find_tpu() is None
    monkeypatch.setenv("TPU_NAME", "grpc://10.0.0.2:8470")
    assert find_tpu() == "grpc://10.0.0.2:8470"
