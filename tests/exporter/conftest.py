"""Fixtures: real checkpoints, made once per session, and the command in this process, because TensorFlow is slow."""

import functools
import json
import os
import random
import signal
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.exporter.bad_inputs.sections import SECTIONS
from tpuserve_exporter.command.exporting import main
from tpuserve_exporter.models.frameworks import start_tensorflow


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed the random generators by the test's name.

    Rare weights make two models give equal outputs, which fails tests. The hook runs before the test's fixtures,
    because they draw random numbers too.
    """
    seed = zlib.crc32(f"{item.path.name}::{item.name}".encode())
    random.seed(seed)
    np.random.seed(seed)
    if (keras := sys.modules.get("keras")) is not None:
        keras.utils.set_random_seed(seed)


@pytest.fixture(scope="session")
def tensorflow() -> None:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # otherwise JAX first spends a long time searching for a TPU
    start_tensorflow()


@pytest.fixture(scope="module")
def make_sources(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that makes the sources of a section of bad inputs once."""

    @functools.cache
    def made(name: str) -> Path:
        folder = tmp_path_factory.mktemp("sources")
        SECTIONS[name].make(folder)
        return folder

    return made


@pytest.fixture(scope="session")
def digits_checkpoint(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train the digits example for two epochs: mixed_bfloat16, optimizer, step, two checkpoints."""
    from examples.digits.train import train

    out = tmp_path_factory.mktemp("digits") / "checkpoints"
    train(out, epochs=2, seed=1)
    return out


@pytest.fixture(scope="session")
def tiny_checkpoint(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint of `builders.tiny` after one step."""
    from tests.exporter import builders

    return save_checkpoint(tmp_path_factory.mktemp("tiny"), builders.tiny())


def save_checkpoint(directory: Path, model: Any) -> Path:  # noqa: ANN401 - a Keras model
    """Train `model` for a step, which creates optimizer state, and save it like a training script."""
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
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """Standard output, which must be a single JSON document."""
        document: dict[str, Any] = json.loads(self.out)
        return document


@pytest.fixture
def export(
    tensorflow: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Finished]]:
    """Return a function that runs `tpuserve export` with its arguments, like the entry point."""
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


def without_tried_sizes(tensors: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return a manifest's tensors without the sizes that depend on the samples (see test_tried_sizes.py)."""
    return {name: {key: value for key, value in one.items() if key != "tried_sizes"} for name, one in tensors.items()}


def read_manifest(version: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((version / "assets.extra/tpuserve/manifest.json").read_text())
    return manifest
