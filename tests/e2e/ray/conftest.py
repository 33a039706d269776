"""Fixtures: a Ray cluster of two nodes, and models. Only the environment of `make ray` collects these tests."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tensorflow as tf

from tests.contract.serving_models import save_half_plus_two

tf1 = tf.compat.v1

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.ray_cluster import TwoNodes

collect_ignore_glob = [] if importlib.util.find_spec("ray") else ["test_*.py"]


@pytest.fixture(scope="session")
def cluster() -> "Iterator[TwoNodes]":
    from tests.support.ray_cluster import two_nodes

    with two_nodes() as nodes:
        yield nodes


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that add 2 in version 1, and 3 in version 2, to the half of x. `slow` takes about 50 ms for a batch."""
    folder = tmp_path_factory.mktemp("models")
    _save_slow(folder / "slow" / "1")
    for name in ("half", "one", "two", "three"):
        save_half_plus_two(folder / name / "1")
        save_half_plus_two(folder / name / "2", plus=3.0)
    (folder / "empty").mkdir()
    return folder


def _save_slow(path: Path) -> None:
    with tf.Graph().as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.float32, [None, 1], "x")
        count = tf.while_loop(lambda i: i < 20_000, lambda i: (i + 1,), (tf.constant(0),))[0]
        y = x / 2 + tf.cast(count, tf.float32) / 10_000
        tf1.saved_model.simple_save(session, str(path), {"x": x}, {"y": y})
