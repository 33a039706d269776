"""Tests for Keras models in several files, and for their classes in modules of the user."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.exporter.test_layer_states import answer
from tpuserve_exporter.errors import BuilderFailed, CheckpointMismatch, OptionConflict, SourceUnreadable, UnsafeSource
from tpuserve_exporter.inspection.look import inspect
from tpuserve_exporter.options.export_options import InputNaming, ModelOptions, Weights
from tpuserve_exporter.sources.kinds import detect, open_source
from tpuserve_exporter.sources.live_model import open_live
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.terms.provenance import OriginKind

pytestmark = [
    pytest.mark.xdist_group(__name__),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # from Keras' saving code
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:orbax"),
]

SENTENCES = np.array([b"the cat", b"dog zzz", b"a", b"the"])


@pytest.fixture(scope="module")
def trained(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[Weights, Any]]:
    """Train a model with the callback, and save sharded weights. Return the answers as trained and of the averages."""
    import keras
    import tensorflow as tf

    from tests.exporter.state_builders import nested

    folder = tmp_path_factory.mktemp("keras")
    model, answers = nested(["the cat", "a dog"]), dict[Weights, Any]()
    model.compile(keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.5), loss="mse")
    rows = tf.data.Dataset.from_tensors((tf.constant(SENTENCES), np.ones((4, 2), np.float32)))
    keep = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: answers.update(raw=model.predict_on_batch(SENTENCES))
    )
    saving = [
        keras.callbacks.OrbaxCheckpoint(str(folder / name), save_weights_only=only, save_on_background=False)
        for name, only in (("whole", False), ("weights", True))
    ]
    model.fit(rows, epochs=2, shuffle=False, verbose=0, callbacks=[*saving, keep])
    answers["ema"] = model.predict_on_batch(SENTENCES)  # the training ends with the averages
    model.save_weights(folder / "sharded.weights.json", max_shard_size=1e-6)
    return folder, answers


def open_nested(source: Path, builder: str | None = None, weights: Weights = "raw") -> OpenedSource:
    named = None if builder is None else f"tests.exporter.state_builders:{builder}"
    return open_source(
        detect(source, named is not None),
        source,
        ModelOptions(builder=named, allow_missing=("*/vocabulary",), weights=weights),
    )


@pytest.mark.parametrize("weights", ["raw", "ema"])
@pytest.mark.parametrize("builder", [None, "nested"])
def test_a_directory_of_the_callback_is_read_by_path(
    trained: tuple[Path, dict[Weights, Any]], builder: str | None, weights: Weights
) -> None:
    """Keras changes the names of layers in nested models when it builds them again, and then finds no values."""
    folder, answers = trained
    opened = open_nested(folder / "whole", builder, weights)
    np.testing.assert_allclose(answer(opened, SENTENCES), answers[weights], atol=1e-6)
    kinds = {one.kind for one in opened.origins.values()}
    assert kinds >= {OriginKind.VOCABULARY, OriginKind.AVERAGE if weights == "ema" else OriginKind.PARAMETERS}
    assert opened.step == 1


def test_a_directory_of_weights_needs_a_builder_with_the_vocabulary(trained: tuple[Path, dict[Weights, Any]]) -> None:
    folder, answers = trained
    with pytest.raises(OptionConflict, match="contains only weights"):
        open_nested(folder / "weights")
    with pytest.raises(CheckpointMismatch, match="vocabulary has no value"):
        open_nested(folder / "weights", "nested")
    opened = open_nested(folder / "weights", "nested_with_terms")
    np.testing.assert_allclose(answer(opened, SENTENCES), answers["raw"], atol=1e-6)


def test_sharded_weights_are_read_as_one(trained: tuple[Path, dict[Weights, Any]], tmp_path: Path) -> None:
    folder, answers = trained
    index = folder / "sharded.weights.json"
    shards = sorted(folder.glob("sharded_*.weights.h5"))
    assert len(shards) > 1
    opened = open_nested(index, "nested_with_terms")
    np.testing.assert_allclose(answer(opened, SENTENCES), answers["ema"], atol=1e-6)
    assert inspect(index).files.keys() == {one.name for one in (index, *shards)}
    content = json.loads(index.read_text())
    (tmp_path / index.name).write_text(json.dumps(content))
    with pytest.raises(SourceUnreadable, match="lacks sharded_00000"):
        open_nested(tmp_path / index.name, "nested_with_terms")
    content["weight_map"] = {"/layers": ["../elsewhere.h5"]}
    (tmp_path / index.name).write_text(json.dumps(content))
    with pytest.raises(UnsafeSource, match="outside its directory"):
        open_nested(tmp_path / index.name, "nested_with_terms")


def test_import_gives_the_classes_of_a_file(tensorflow: None, tmp_path: Path) -> None:
    import keras

    from tests.exporter.state_builders import Mean

    row = keras.Input((3, 2), name="x")
    model = keras.Model(row, keras.layers.Dense(2, name="y")(Mean()(row)))
    source = tmp_path / "model.keras"
    model.save(source)
    rows = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    with pytest.raises(SourceUnreadable, match=r"needs the class Mean.* Import the module that defines it, --import"):
        open_source("keras", source, ModelOptions())
    opened = open_source("keras", source, ModelOptions(imports=("tests.exporter.state_builders",)))
    np.testing.assert_allclose(answer(opened, rows), model.predict_on_batch(rows), atol=1e-6)
    with pytest.raises(OptionConflict, match="reads without --model"):
        open_source("keras", source, ModelOptions(builder="a:b", imports=("tests.exporter.state_builders",)))
    with pytest.raises(BuilderFailed, match="cannot import no_such_module"):
        open_source("keras", source, ModelOptions(imports=("no_such_module",)))


def test_functions_of_other_packages_do_not_count() -> None:
    from tpuserve_exporter.sources.keras.custom_objects import import_objects

    assert not import_objects(["tests.exporter.state_builders"]).keys() & {"Path", "Sequence", "Any"}
    assert "Mean" in import_objects(["tests.exporter.state_builders"])


def test_code_that_needs_fixed_sizes_is_refused_with_the_option(tensorflow: None, tmp_path: Path) -> None:
    import keras

    image = keras.Input((None, None, 1), name="image")
    model = keras.Model(image, keras.layers.UpSampling2D(interpolation="bilinear", name="y")(image))
    opened = open_live(model, ModelOptions())
    assert not isinstance(opened.model, Path)
    with pytest.raises(BuilderFailed, match=r"UpSampling2D.* --input 'image:float32\[batch,64,64,1\]'"):
        opened.model.trace()
    fixed = open_live(model, ModelOptions(inputs=(InputNaming.parse("image:float32[batch,4,4,1]"),)))
    images = np.arange(16, dtype=np.float32).reshape(1, 4, 4, 1)
    np.testing.assert_allclose(answer(fixed, images), model.predict_on_batch(images), atol=1e-6)
