"""Fixtures that end-to-end tests share: a server with a model that has every kind of signature."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf

from tests.e2e.running_server import RunningServer, run_server
from tests.support.saved_models import save_mlp, write_manifest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Run tests that share the server in one process. Some modules have a separate server, and a group for it."""
    has_group = item.get_closest_marker("xdist_group") is not None
    if isinstance(item, pytest.Function) and "server" in item.fixturenames and not has_group:
        item.add_marker(pytest.mark.xdist_group("calculator"))


def save_calculator(path: Path) -> Path:
    """Save the calculator, a model with four signatures.

    `serving_default`: x (float [?, 2]) -> y = 2 x; `wide`: the same for x [?, ?]; `add`: a, b -> sum, product;
    `lookup`: index -> value, text.
    """
    module = tf.Module()
    rows = [tf.TensorSpec([None, 2], tf.float32, "x")]
    pair = [tf.TensorSpec([None], tf.float32, name) for name in "ab"]
    module.double = tf.function(lambda x: {"y": 2 * x}, input_signature=rows)
    wide = [tf.TensorSpec([None, None], tf.float32, "x")]
    module.wide = tf.function(lambda x: {"y": 2 * x}, input_signature=wide)
    module.add = tf.function(lambda a, b: {"sum": a + b, "product": a * b}, input_signature=pair)
    module.lookup = tf.function(
        lambda index: {
            "value": tf.gather(tf.constant([10, 20, 30], tf.int64), index),
            "name_bytes": tf.gather(tf.constant(["zero", "one", "two"]), index),
        },
        input_signature=[tf.TensorSpec([None], tf.int32, "index")],
    )
    signatures = {
        "serving_default": module.double, "wide": module.wide, "add": module.add, "lookup": module.lookup,
    }  # fmt: skip
    tf.saved_model.save(module, str(path), signatures=signatures)
    checked = {name: {"batch_sizes": [1, 2, 4, 8], "rows_independent": True} for name in signatures}
    write_manifest(path, signatures=checked)
    return path


@pytest.fixture(scope="session")
def calculator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a base path with the calculator as version 3."""
    base_path = tmp_path_factory.mktemp("calculator")
    save_calculator(base_path / "3")
    return base_path


@pytest.fixture(scope="session")
def server(calculator: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Yield a server of the calculator."""
    log = tmp_path_factory.mktemp("server") / "log"
    flags = ("--max_request_bytes=4000000", "--rest_api_enable_cors_support")
    with run_server(calculator, log, *flags, model="calculator") as server:
        yield server


@pytest.fixture
def mlp_base(tmp_path: Path) -> Path:
    """Return a base path with version 1 of the MLP, for tests that add versions."""
    path = save_mlp(tmp_path / "mlp" / "1", seed=1)
    write_manifest(path)
    return path.parent
