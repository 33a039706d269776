"""Tests for the choice of weights (as trained or moving average) and for renaming."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tests.exporter import builders
from tests.exporter.conftest import Finished, read_manifest
from tests.exporter.served import serve_rows
from tpuserve_exporter.command.inspecting import command as inspect
from tpuserve_exporter.terms.signature import Array

pytestmark = [pytest.mark.xdist_group(__name__)]

Export = Callable[..., Finished]
TINY = ("--model", "tests.exporter.builders:tiny", "--batch-sizes", "2")
ROWS = np.array([[0, 1, 2], [3, 1, 0]], np.float32)


@pytest.fixture(scope="module")
def averaging(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Array, Array]:
    """Save a checkpoint of a run with `use_ema`. Return it with the outputs of the trained and the averaged weights."""
    import keras
    import tensorflow as tf

    model = builders.tiny()
    model.compile(keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.5), loss="mse")
    for _ in range(3):
        model.train_on_batch(ROWS, np.ones((2, 2), np.float32))
    directory = tmp_path_factory.mktemp("averaging")
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(directory / "ckpt"))
    trained = model(ROWS).numpy()
    model.optimizer.finalize_variable_values(model.trainable_variables)
    return directory, trained, model(ROWS).numpy()


@pytest.mark.parametrize(
    ("weights", "taken", "message"),
    [
        ((), "ema", "used the moving averages of 4 of 4 variables (--weights raw uses them as trained)"),
        (("--weights", "ema"), "ema", "4 matched, 4 of them moving averages"),
        (("--weights", "raw"), "raw", "4 matched, 14 of optimizer state not used"),
    ],
)
def test_averages_of_an_optimizer_are_taken_or_left(
    export: Export,
    averaging: tuple[Path, Array, Array],
    tmp_path: Path,
    weights: tuple[str, ...],
    taken: str,
    message: str,
) -> None:
    directory, trained, averaged = averaging
    assert np.abs(trained - averaged).max() > 0.01
    finished = export(directory, tmp_path / "tiny", *TINY, *weights)
    assert finished.code == 0, finished.err
    assert message in finished.out
    np.testing.assert_allclose(
        serve_rows(tmp_path / "tiny/1", ROWS), averaged if taken == "ema" else trained, atol=1e-6
    )


def test_what_was_taken_is_reported_by_variable(
    export: Export, averaging: tuple[Path, Array, Array], tmp_path: Path
) -> None:
    finished = export(averaging[0], tmp_path / "tiny", *TINY, "--json")
    origins = finished.document["provenance"]
    assert [(one["kind"], one["part"]) for one in origins] == [("average", "optimizer")] * 4
    assert [one["name"] for one in origins] == [one["name"] for one in finished.document["restore"]["variables"]]
    assert "hidden/kernel" not in str(finished.document["restore"]["optimizer_state"])
    inspected = json.loads(CliRunner().invoke(inspect, [str(averaging[0]), "--json"]).stdout)["variables"]
    assert [one["part"] for one in inspected].count("average") == 4
    (counted,) = finished.document["manifest"]["source"]["provenance"]
    assert counted.pop("detail").startswith("compared with the weights as trained: ")
    assert counted == {"kind": "average", "part": "optimizer", "count": 4}


def test_averages_that_no_step_has_fed_are_not_taken(export: Export, tmp_path: Path) -> None:
    import keras
    import tensorflow as tf

    model = builders.tiny()
    model.compile(keras.optimizers.Adam(use_ema=True), loss="mse")
    model.optimizer.build(model.trainable_variables)
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(tmp_path / "run/ckpt"))
    finished = export(tmp_path / "run", tmp_path / "tiny", *TINY)
    assert (finished.code, "moving averages" in finished.out) == (0, False), finished.err
    np.testing.assert_allclose(serve_rows(tmp_path / "tiny/1", ROWS), model(ROWS).numpy(), atol=1e-6)


def test_averages_in_slots_are_found_in_a_keras_2_checkpoint(export: Export, tensorflow: None, tmp_path: Path) -> None:
    """Find averages that Model Garden saves in slots, with Keras 2's keys and independently numbered layer names."""
    import tensorflow as tf
    import tf_keras

    tf_keras.layers.Dense(1).build((1,))
    trained, averaged = (
        tf_keras.Sequential([tf_keras.Input((3,)), tf_keras.layers.Dense(4, "relu"), tf_keras.layers.Dense(2)])
        for _ in range(2)
    )
    optimizer = tf_keras.optimizers.legacy.SGD(0.1)
    for variable, average in zip(trained.variables, averaged.variables, strict=True):
        average.assign(0.9 * variable + 0.01)
        optimizer.add_slot(variable, "average", initializer=average.numpy())
    tf.train.Checkpoint(model=trained, optimizer=optimizer).save(str(tmp_path / "run/ckpt"))
    builder = ("--model", "tests.exporter.builders:unnamed_relu", "--batch-sizes", "2")
    for weights, expected in (("auto", averaged), ("raw", trained)):
        finished = export(tmp_path / "run", tmp_path / weights, *builder, "--weights", weights)
        assert finished.code == 0, finished.err
        assert "matched in the order of their numbers" in finished.out
        np.testing.assert_allclose(serve_rows(tmp_path / weights / "1", ROWS), expected(ROWS).numpy(), atol=1e-6)


@pytest.mark.parametrize("scale", [0.0, 0.1])
def test_slots_that_training_has_not_filled_are_not_served(
    export: Export, tensorflow: None, tmp_path: Path, scale: float
) -> None:
    """Slots start at zero in Model Garden, and stay there until SWA of TensorFlow Addons starts."""
    import tensorflow as tf
    import tf_keras

    tf_keras.layers.Dense(1).build((1,))
    layers = [tf_keras.Input((3,)), tf_keras.layers.Dense(4, "relu"), tf_keras.layers.Dense(2)]
    trained, optimizer = tf_keras.Sequential(layers), tf_keras.optimizers.legacy.SGD(0.1)
    for variable in trained.variables:
        optimizer.add_slot(variable, "average", initializer=scale * variable.numpy())
    tf.train.Checkpoint(model=trained, optimizer=optimizer).save(str(tmp_path / "run/ckpt"))
    options = ("--model", "tests.exporter.builders:unnamed_relu", "--batch-sizes", "2", "--json")
    refused = export(tmp_path / "run", tmp_path / "m", *options, "--weights", "ema")
    reason = "is biased towards zero: it points as the weights as trained do" if scale else "has no moving averages"
    assert (refused.code, reason in refused.document["error"]) == (2, True)
    found = export(tmp_path / "run", tmp_path / "m", *options)
    assert found.code == (2 if scale else 0)
    if not scale:
        assert {one["kind"] for one in found.document["provenance"]} == {"parameters"}


def test_a_model_is_taken_by_its_name(export: Export, tmp_path: Path) -> None:
    student, teacher = builders.tiny(), builders.tiny()
    source = save(tmp_path / "run", student=student, teacher=teacher)
    finished = export(source, tmp_path / "tiny", *TINY, "--weights", "teacher", "--json")
    assert finished.code == 0, finished.err
    assert {(one["kind"], one["part"]) for one in finished.document["provenance"]} == {("parameters", "teacher")}
    np.testing.assert_allclose(serve_rows(tmp_path / "tiny/1", ROWS), teacher(ROWS).numpy(), atol=1e-6)
    finished = export(source, tmp_path / "tiny", *TINY, "--weights", "nothing")
    assert (finished.code, "has no model of this name. It has 'student', 'teacher'" in finished.err) == (2, True)


@pytest.mark.parametrize("weights", ["auto", "ema", "raw"])
def test_a_model_called_ema_beside_the_trained_one(export: Export, tmp_path: Path, weights: str) -> None:
    trained, averaged = builders.tiny(), builders.tiny()
    averaged.set_weights([one * 0.9 + 0.01 for one in trained.get_weights()])
    source = save(tmp_path / "run", model=trained, ema=averaged)
    finished = export(source, tmp_path / "tiny", *TINY, "--weights", weights)
    assert finished.code == 0, finished.err
    assert ("used the moving averages in 'ema' of 4 of 4 variables" in finished.out) is (weights != "raw")
    assert ("used 'model' of the checkpoint, although 'ema' would also fit" in finished.out) is (weights == "raw")
    expected = trained if weights == "raw" else averaged
    kind, part = ("parameters", "model") if weights == "raw" else ("average", "ema")
    provenance = read_manifest(tmp_path / "tiny/1")["source"]["provenance"]
    assert ("detail" in provenance[0]) is (weights != "raw")
    assert [one | {"detail": ""} for one in provenance] == [{"kind": kind, "part": part, "detail": "", "count": 4}]
    text = CliRunner().invoke(inspect, [str(tmp_path / "tiny")]).stdout
    assert ("4 values as trained, from model" if weights == "raw" else "4 moving averages, from ema") in text
    np.testing.assert_allclose(serve_rows(tmp_path / "tiny/1", ROWS), expected(ROWS).numpy(), atol=1e-6)


def test_weights_that_are_not_there_are_refused(export: Export, tiny_checkpoint: Path, tmp_path: Path) -> None:
    finished = export(tiny_checkpoint, tmp_path / "tiny", *TINY, "--weights", "ema")
    assert (finished.code, "has no moving averages of these variables" in finished.err) == (2, True), finished.err
    source = save(tmp_path / "run", ema=builders.tiny())
    finished = export(source, tmp_path / "tiny", *TINY, "--weights", "raw")
    assert (finished.code, "--weights raw: only 'ema' of ckpt-1 fits the model" in finished.err) == (2, True)
    assert not (tmp_path / "tiny").exists()


def test_renamed_variables_are_matched_by_their_new_names(export: Export, tmp_path: Path) -> None:
    trained = builders.tiny()
    source = save(tmp_path / "run", model=trained)
    builder = ("--model", "tests.exporter.builders:renamed", "--batch-sizes", "2")
    finished = export(source, tmp_path / "tiny", *builder, "--rename", "^hidden/=encoder/", "--rename", "^scor=s")
    assert finished.code == 2  # "ses/kernel" matches no variable
    finished = export(source, tmp_path / "tiny", *builder, "--rename", "^hidden/=encoder/", "--rename", "^s(c)=h\\1")
    assert finished.code == 2
    finished = export(source, tmp_path / "tiny", *builder, "--rename", "^hidden/=encoder/", "--rename", "scores/=head/")
    assert finished.code == 0, finished.err
    assert "matched by" not in finished.out
    np.testing.assert_allclose(serve_rows(tmp_path / "tiny/1", ROWS), trained(ROWS).numpy(), atol=1e-6)


def test_renames_that_do_nothing_or_too_much_are_told(export: Export, tiny_checkpoint: Path, tmp_path: Path) -> None:
    finished = export(tiny_checkpoint, tmp_path / "tiny", *TINY, "--rename", "^backbone/=")
    assert finished.code == 0
    assert "--rename ^backbone/= changes no name" in finished.out
    finished = export(tiny_checkpoint, tmp_path / "tiny", *TINY, "--rename", ".*/bias=bias")
    assert (finished.code, "--rename gives several variables the same name: bias" in finished.err) == (2, True)


def save(directory: Path, **models: Any) -> Path:  # noqa: ANN401 - Keras models
    import tensorflow as tf

    tf.train.Checkpoint(**models).save(str(directory / "ckpt"))
    return directory


def test_averages_that_are_no_model_are_said(tensorflow: None, tmp_path: Path) -> None:
    """The list of a tf.train.ExponentialMovingAverage, whose names lack the layers."""
    import tensorflow as tf

    from tpuserve_exporter.options.export_options import ModelOptions
    from tpuserve_exporter.sources.checkpoint_path import find_prefix
    from tpuserve_exporter.sources.variables.object_graph import read_object_graph
    from tpuserve_exporter.sources.variables.object_restore import restore

    trained, averages = builders.tiny(), tf.train.ExponentialMovingAverage(0.9)
    values = [one.value for one in trained.trainable_variables]
    averages.apply(values)
    source = save(tmp_path / "run", model=trained, shadow=list(map(averages.average, values)))
    options = ModelOptions(builder="tests.exporter.builders:tiny")
    notes = restore(builders.tiny(), read_object_graph(find_prefix(source)), options).notes
    assert any("did not use 'shadow', because its 4 variable(s) are not those of a whole model" in one for one in notes)
