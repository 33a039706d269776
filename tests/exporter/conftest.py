"""Real checkpoints to export, made once a session, and the command run in this process: TensorFlow starts slowly."""

import json
import os
import random
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpuserve_exporter.command.exporting import main
from tpuserve_exporter.tensorflow_start import start_tensorflow


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test draws the same weights each time; the rare draw that makes two models answer alike would fail it.

    Before its fixtures, which draw, too.
    """
    seed = zlib.crc32(f"{item.path.name}::{item.name}".encode())
    random.seed(seed)
    np.random.seed(seed)
    if (keras := sys.modules.get("keras")) is not None:
        keras.utils.set_random_seed(seed)


@pytest.fixture(scope="session")
def tensorflow() -> None:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # or JAX looks for a TPU first, and for long
    start_tensorflow()


@pytest.fixture(scope="session")
def digits_checkpoint(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the digits example leaves after two epochs: mixed_bfloat16, optimizer, step, two checkpoints."""
    from examples.digits.train import train

    out = tmp_path_factory.mktemp("digits") / "checkpoints"
    train(out, epochs=2, seed=1)
    return out


@pytest.fixture(scope="session")
def tiny_checkpoint(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`builders.tiny`, trained for one step."""
    from tests.exporter import builders

    return save_checkpoint(tmp_path_factory.mktemp("tiny"), builders.tiny())


def save_checkpoint(directory: Path, model: Any) -> Path:  # noqa: ANN401 - a Keras model
    """Train `model` for a step, so that there is optimizer state, and save it as training scripts do."""
    import tensorflow as tf

    model.compile("adam", loss="mse")
    rows = np.ones((2, 3), np.float32)
    model.fit(rows, np.zeros((2, 2), np.float32), verbose=0)
    step = tf.Variable(7, dtype=tf.int64, name="step")
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer, step=step)
    tf.train.CheckpointManager(checkpoint, str(directory), max_to_keep=1).save(checkpoint_number=7)
    return directory


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """Standard output as the one JSON document it must be."""
        document: dict[str, Any] = json.loads(self.out)
        return document


@pytest.fixture
def export(
    tensorflow: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Finished]]:
    """Runs `tpuserve export` with these arguments, as its entry point does."""
    before = signal.getsignal(signal.SIGTERM)

    def run(*arguments: object) -> Finished:
        capsys.readouterr()
        monkeypatch.setattr("sys.argv", ["tpuserve-export", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Finished(ended.value.code, captured.out, captured.err)

    yield run
    signal.signal(signal.SIGTERM, before)


def read_manifest(version: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((version / "assets.extra/tpuserve/manifest.json").read_text())
    return manifest
