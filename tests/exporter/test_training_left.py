"""Tests that the export refuses exactly the models in training mode, for every kind of source."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.exporter import builders, freezable
from tests.exporter.conftest import Finished, read_manifest

pytestmark = [
    pytest.mark.xdist_group(__name__),
    pytest.mark.usefixtures("tensorflow"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # from Keras' saving code
]
Export = Callable[..., Finished]
Tensor = Any


def _export(export: Export, builder: str, folder: Path, *options: str) -> Finished:
    getattr(freezable, builder)().save_weights(folder / "m.weights.h5")
    model = ("--model", f"tests.exporter.freezable:{builder}", "--batch-sizes", "4")
    return export(folder / "m.weights.h5", folder / "m", *model, *options)


def _output(finished: Finished) -> str:
    return " ".join((finished.out + finished.err).split())


def test_dropout_left_in_training_mode_is_refused_by_name(export: Export, tmp_path: Path) -> None:
    finished = _export(export, "dropping", tmp_path)
    assert finished.code == 3
    assert "answers the same request differently when it is repeated" in _output(finished)
    assert "/drop_1. If this is dropout or training noise, call the layer with training=False" in _output(finished)
    assert not (tmp_path / "m").exists()


def test_answers_that_differ_each_time_are_published_if_that_is_allowed(export: Export, tmp_path: Path) -> None:
    finished = _export(export, "dropping", tmp_path, "--allow-nondeterminism")
    assert finished.code == 0, finished.err
    assert "The export compares only shapes with the source, and requests do not share batches" in _output(finished)
    assert "deterministic: no, the answer to the same request differs each time" in _output(finished)
    signature = read_manifest(tmp_path / "m/1")["signatures"]["serving_default"]
    assert (signature["deterministic"], signature["rows_independent"]) == (False, False)


def test_a_batch_norm_left_in_training_mode_is_refused_by_name(export: Export, tmp_path: Path) -> None:
    finished = _export(export, "normalising", tmp_path)
    assert finished.code == 3
    assert "uses averages over the batch: functional_1/scores_1/norm_1/moments/mean" in _output(finished)


def test_averages_over_a_list_are_published_if_that_is_allowed(export: Export, tmp_path: Path) -> None:
    finished = _export(export, "normalising", tmp_path, "--allow-batch-statistics")
    assert finished.code == 0, finished.err
    assert "a row of serving_default depends on the batch size" in _output(finished)
    assert read_manifest(tmp_path / "m/1")["signatures"]["serving_default"]["rows_independent"] is False


def test_a_counter_that_no_answer_depends_on_is_warned_of(export: Export, tmp_path: Path) -> None:
    finished = _export(export, "counting", tmp_path)
    assert finished.code == 0, finished.err
    assert "changes variables at each request, in functional_1/scores_1" in _output(finished)
    assert "deterministic" not in read_manifest(tmp_path / "m/1")["signatures"]["serving_default"]


def test_a_model_as_it_should_be_has_nothing_to_tell(export: Export, tmp_path: Path) -> None:
    builders.tiny().save(tmp_path / "tiny.keras")
    finished = export(tmp_path / "tiny.keras", tmp_path / "m", "--batch-sizes", "1", "--json")
    assert finished.document["warnings"] == []


def _saved(folder: Path, call: Callable[..., Tensor], rows: int | None = None) -> Path:
    """Save a SavedModel of `call`, which takes a tensor and a variable [4, 3]."""
    import tensorflow as tf

    module = tf.Module()
    module.state = tf.Variable(tf.zeros([4, 3]))
    function = tf.function(lambda x: {"y": call(x, module.state)}, autograph=False)
    tf.saved_model.save(
        module, str(folder), function.get_concrete_function(tf.TensorSpec([rows, 3], tf.float32, name="x"))
    )
    return folder


def _normalised(x: Tensor, state: Tensor) -> Tensor:
    import tensorflow as tf

    mean, variance = tf.nn.moments(x, [0])
    return (x - mean) * tf.math.rsqrt(variance + 1e-3)


def _accumulating(x: Tensor, state: Tensor) -> Tensor:
    import tensorflow as tf

    return tf.tanh(state.assign_add(x))


def _remembering(x: Tensor, state: Tensor) -> Tensor:
    """Return equal outputs for repeated requests, and other outputs after a different request."""
    import tensorflow as tf

    before = tf.identity(state)
    with tf.control_dependencies([before]):
        state.assign(x)
    return x + before


def _of_the_clock(x: Tensor, state: Tensor) -> Tensor:
    import tensorflow as tf

    return x + tf.cast(tf.timestamp() * 1e5 % 1000.0, tf.float32)


@pytest.mark.parametrize(
    ("call", "rows", "message"),
    [
        (_normalised, None, "uses averages over the batch: moments/mean, moments/variance"),
        (_normalised, 4, "uses averages over the batch: moments/mean, moments/variance"),
        (_accumulating, 4, "differently when it is repeated (output 'y' differs"),
        (_remembering, 4, "Take the state as an input and return the new state as an output"),
        (_of_the_clock, None, "Its operations do not show why. Look for state, time, or random numbers"),
    ],
    ids=["batch norm", "batch norm of a fixed batch", "state", "memory", "clock"],
)
def test_a_saved_model_whose_answers_are_not_its_own_is_refused(
    export: Export, tmp_path: Path, call: Callable[..., Tensor], rows: int | None, message: str
) -> None:
    finished = export(_saved(tmp_path / "saved", call, rows), tmp_path / "m", "--batch-sizes", "1,4")
    assert finished.code == 3, finished.out
    assert message in _output(finished)
    assert not (tmp_path / "m").exists()


def test_a_jax_model_that_averages_over_its_rows_is_refused(export: Export, tmp_path: Path) -> None:
    """Export a graph that contains its operations as a StableHLO program."""
    jax2tf = pytest.importorskip("jax.experimental.jax2tf")

    def call(x: Tensor, state: Tensor) -> Tensor:
        converted = jax2tf.convert(lambda x: x - x.mean(0), polymorphic_shapes=["rows, _"], with_gradient=False)
        return converted(x)

    finished = export(_saved(tmp_path / "saved", call), tmp_path / "m", "--batch-sizes", "1,4")
    assert finished.code == 3, finished.out
    assert "uses averages over the batch: stablehlo.reduce" in _output(finished)


def test_rows_of_a_fixed_batch_that_are_ranked_are_published(export: Export, tmp_path: Path) -> None:
    import tensorflow as tf

    saved = _saved(tmp_path / "saved", lambda x, state: tf.nn.softmax(x, axis=0), 4)
    finished = export(saved, tmp_path / "m", "--batch-sizes", "1")
    assert finished.code == 0, finished.err
