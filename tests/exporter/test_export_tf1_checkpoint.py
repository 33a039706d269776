"""Tests that a TF1 checkpoint and its graph function become a version or an error that explains why."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.exporter.conftest import Finished, read_manifest
from tests.exporter.served import serve

pytestmark = [pytest.mark.xdist_group(__name__)]

Export = Callable[..., Finished]
FEATURES = ("--input", "features:float32[batch,4]", "--batch-sizes", "1,2")
MLP = ("--model", "tests.exporter.tf1_graphs:mlp", *FEATURES)


@pytest.fixture(scope="module")
def checkpoint(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint of `tf1_graphs.mlp` after twenty steps of Adam."""
    from tests.exporter import tf1_graphs

    return tf1_graphs.train(tmp_path_factory.mktemp("tf1") / "model.ckpt")


@pytest.fixture(scope="module")
def averaged(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same checkpoint with moving averages of its variables."""
    from tests.exporter import tf1_graphs

    return tf1_graphs.train(tmp_path_factory.mktemp("averaged") / "model.ckpt", averages=True)


def test_checkpoint_by_name_becomes_version_1_with_the_trained_weights(
    export: Export, checkpoint: Path, tmp_path: Path
) -> None:
    finished = export(checkpoint.parent, tmp_path / "mlp", *MLP)
    assert finished.code == 0, finished.err
    assert "tf1-ckpt model.ckpt-20 at step 20; 4 matched, 10 of optimizer state not used" in finished.out
    features, labels = _data()
    served = serve(tmp_path / "mlp/1", features=features)
    assert (served["probabilities"].argmax(axis=1) == labels).all()
    np.testing.assert_allclose(served["logits"], _logits(checkpoint, features), rtol=1e-5, atol=1e-6)
    manifest = read_manifest(tmp_path / "mlp/1")
    assert manifest["source"] == {
        "kind": "tf1-ckpt",
        "name": "model.ckpt-20",
        "step": 20,
        "builder": "tests.exporter.tf1_graphs:mlp",
        "provenance": [{"kind": "parameters", "count": 4}],
    }
    assert manifest["signatures"]["serving_default"]["rows_independent"] is True


def test_moving_averages_are_served_unless_the_raw_weights_are_asked_for(
    export: Export, averaged: Path, tmp_path: Path
) -> None:
    features, _ = _data()
    shadow = _logits(averaged, features, "/ExponentialMovingAverage")
    raw = _logits(averaged, features)
    assert np.abs(shadow - raw).max() > 0.01
    auto = export(averaged, tmp_path / "auto", *MLP)
    assert auto.code == 0, auto.err
    assert "used the moving averages of 4 of 4 variables (--weights raw uses the others)" in auto.out
    (provenance,) = read_manifest(tmp_path / "auto/1")["source"]["provenance"]
    assert provenance.pop("detail").startswith("compared with the weights as trained: ")
    assert provenance == {"kind": "average", "part": "NAME/ExponentialMovingAverage", "count": 4}
    np.testing.assert_allclose(serve(tmp_path / "auto/1", features=features)["logits"], shadow, rtol=1e-4, atol=1e-5)
    assert export(averaged, tmp_path / "raw", *MLP, "--weights", "raw").code == 0
    np.testing.assert_allclose(serve(tmp_path / "raw/1", features=features)["logits"], raw, rtol=1e-4, atol=1e-5)


def test_all_that_does_not_fit_is_listed(export: Export, checkpoint: Path, tmp_path: Path) -> None:
    finished = export(checkpoint, tmp_path / "m", "--model", "tests.exporter.tf1_graphs:wider", *FEATURES, "--json")
    assert finished.code == 2
    fates = {one["name"]: one["fate"] for one in finished.document["restore"]["variables"]}
    assert fates == {
        "mlp/hidden/kernel": "shape differs",
        "mlp/hidden/bias": "shape differs",
        "mlp/scores/kernel": "missing",
        "mlp/scores/bias": "missing",
        "mlp/logits/bias": "dtype differs",
        "mlp/logits/kernel": "unused",
    }
    assert list(tmp_path.iterdir()) == []


def test_a_variable_that_may_be_missing_keeps_its_initial_value(
    export: Export, checkpoint: Path, tmp_path: Path
) -> None:
    renamed = ("--rename", "^mlp/logits/bias=elsewhere/bias")
    refused = export(checkpoint, tmp_path / "mlp", *MLP, *renamed)
    assert refused.code == 2
    allowed = ("--allow-missing", "*/bias", "--allow-unused", "elsewhere/*")
    finished = export(checkpoint, tmp_path / "mlp", *MLP, *renamed, *allowed)
    assert finished.code == 0, finished.err
    features, _ = _data()
    without_bias = _logits(checkpoint, features) - _value(checkpoint, "mlp/logits/bias")
    np.testing.assert_allclose(
        serve(tmp_path / "mlp/1", features=features)["logits"], without_bias, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("builder", ["one_tensor", "with_reference_variables", "in_parts"])
def test_graphs_of_either_kind_of_variable_are_served(
    export: Export, checkpoint: Path, tmp_path: Path, builder: str
) -> None:
    finished = export(checkpoint, tmp_path / "mlp", "--model", f"tests.exporter.tf1_graphs:{builder}", *FEATURES)
    assert finished.code == 0, finished.err
    features, _ = _data()
    outputs = serve(tmp_path / "mlp/1", features=features)["outputs"]
    np.testing.assert_allclose(outputs, _logits(checkpoint, features), rtol=1e-5, atol=1e-6)


def test_a_loop_that_reads_a_variable_is_served(export: Export, checkpoint: Path, tmp_path: Path) -> None:
    arguments = ("--model", "tests.exporter.tf1_graphs:looping", *FEATURES, "--allow-unused", "*")
    finished = export(checkpoint, tmp_path / "loop", *arguments)
    assert finished.code == 0, finished.err
    served = serve(tmp_path / "loop/1", features=np.zeros((2, 4), np.float32))["outputs"]
    np.testing.assert_allclose(served[1], 4 * _value(checkpoint, "mlp/hidden/bias"), rtol=1e-5)


def test_a_checkpoint_in_the_format_of_before_1_0_is_found_and_read(
    export: Export, tensorflow: None, tmp_path: Path
) -> None:
    from tests.exporter import tf1_graphs

    (tmp_path / "old").mkdir()
    checkpoint = tf1_graphs.train(tmp_path / "old" / "model.ckpt", steps=2, old_format=True)
    assert not list(checkpoint.parent.glob("*.index"))
    for source in (checkpoint, checkpoint.parent):
        finished = export(source, tmp_path / "mlp", *MLP, "--again")
        assert finished.code == 0, finished.err
        assert "tf1-ckpt model.ckpt-2 at step 2; 4 matched" in finished.out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((*MLP, "--compute-dtype", "bfloat16"), 2, "sets its own dtypes. Omit --compute-dtype"),
        ((*MLP, "--output", "a"), 2, "there are 1 --output options, but the model has 2 output(s)"),
    ],
)  # fmt: skip
def test_what_cannot_be_exported_says_why(
    export: Export, checkpoint: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    finished = export(checkpoint, tmp_path / "mlp", *arguments)
    assert finished.code == code, finished.err
    assert message in " ".join(finished.err.split())
    assert "Traceback" not in finished.err
    assert list(tmp_path.iterdir()) == []


def _data() -> tuple[np.ndarray, np.ndarray]:
    from tests.exporter import tf1_graphs

    return tf1_graphs.data()


def _value(checkpoint: Path, name: str) -> np.ndarray:
    import tensorflow as tf

    value: np.ndarray = tf.train.load_checkpoint(str(checkpoint)).get_tensor(name)
    return value


def _logits(checkpoint: Path, features: np.ndarray, suffix: str = "") -> np.ndarray:
    """Compute the model in numpy from the values in the checkpoint."""
    kernels = {name: _value(checkpoint, f"mlp/{name}{suffix}") for name in ("hidden/kernel", "logits/kernel")}
    biases = {name: _value(checkpoint, f"mlp/{name}{suffix}") for name in ("hidden/bias", "logits/bias")}
    hidden = np.maximum(features @ kernels["hidden/kernel"] + biases["hidden/bias"], 0)
    logits: np.ndarray = hidden @ kernels["logits/kernel"] + biases["logits/bias"]
    return logits
