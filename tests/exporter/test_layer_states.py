"""Tests for values of layers that are no variables: restored, compared, or reported as the builder's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpuserve_exporter.errors import BuilderFailed, CheckpointMismatch, SourceUnreadable
from tpuserve_exporter.options.export_options import ModelOptions
from tpuserve_exporter.sources.kinds import detect, open_source
from tpuserve_exporter.sources.live_model import open_live
from tpuserve_exporter.sources.opened import OpenedSource
from tpuserve_exporter.terms.provenance import OriginKind
from tpuserve_exporter.terms.signature import Array

pytestmark = [
    pytest.mark.xdist_group(__name__),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # from Keras' saving code
]

SENTENCES = np.array([b"the cat", b"green dog sea", b"zzz"])
FORMATS = ("model.keras", "model.weights.h5", "ck")


@pytest.fixture(autouse=True)
def _quiet(tensorflow: None) -> None:
    pass


Save = Callable[[Any], Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Return a function that fills a model's weights and saves it in every format."""

    def save_all(model: Any) -> Path:  # noqa: ANN401 - Keras 3, Keras 2 or tf.Module
        import keras
        import tensorflow as tf

        for weight in model.trainable_variables:
            weight.assign(np.random.default_rng(3).normal(size=weight.shape))
        if isinstance(model, keras.Model):
            model.save(tmp_path / "model.keras")
            model.save_weights(tmp_path / "model.weights.h5")
        tf.train.Checkpoint(model=model).save(str(tmp_path / "ck" / "ckpt"))
        return tmp_path

    return save_all


def open_with(source: Path, builder: str | None, allow_missing: tuple[str, ...] = ()) -> OpenedSource:
    named = None if builder is None else f"tests.exporter.state_builders:{builder}"
    options = ModelOptions(builder=named, allow_missing=allow_missing)
    return open_source(detect(source, named is not None), source, options)


def answer(opened: OpenedSource, values: Array) -> Array:
    import tensorflow as tf

    assert not isinstance(opened.model, Path)
    name = next(iter(opened.model.inputs))
    outputs = opened.model.trace()[1](**{name: tf.constant(values)})
    return np.asarray(outputs["y"])


def refuse(source: Path, builder: str | None) -> str:
    with pytest.raises(CheckpointMismatch) as refused:
        open_with(source, builder)
    return str(refused.value)


@pytest.mark.parametrize("builder", ["text", "idf", "bins", "listed"])
def test_a_keras_file_restores_what_the_builder_leaves_open(save: Save, builder: str) -> None:
    from tests.exporter import state_builders

    rows = {"bins": np.array([[0.5], [6.5]], np.float32), "listed": np.array([[0, 1, 3]], np.float32)}
    given: Any = {"bins": (state_builders.AMOUNTS,), "listed": ((1, 2, 3, 4), "two names")}
    model = getattr(state_builders, builder)(*given.get(builder, (state_builders.TEXTS,)))
    values = rows.get(builder, SENTENCES)
    folder = save(model)
    expected = model.predict_on_batch(values)
    opened = open_with(folder / "model.keras", builder)
    np.testing.assert_allclose(answer(opened, values), expected, atol=1e-6)
    assert {one.kind for one in opened.origins.values()} & {OriginKind.VOCABULARY, OriginKind.STATISTICS}
    notes = opened.restore.notes if opened.restore else ()
    assert all(one.startswith("the settings of layers differ") for one in notes)


def test_a_builder_with_another_value_is_refused_with_both(save: Save) -> None:
    from tests.exporter import state_builders

    message = refuse(save(state_builders.text(state_builders.TEXTS)) / "model.keras", "text_of_other_data")
    assert "text_vectorization/vocabulary has 11 terms (number 2 is 'the') in the checkpoint, but 11 terms" in message
    assert "build the layer without a vocabulary" in message
    message = refuse(save(state_builders.bins(state_builders.AMOUNTS)) / "model.keras", "bins_of_other_data")
    assert "discretization/bin_boundaries has 3 values" in message
    assert "normalization/mean_and_variance" in refuse(save(state_builders.scaled(3.0)) / "model.keras", "scaled")
    folder = save(state_builders.idf(state_builders.TEXTS))
    for name in FORMATS:  # all three hold the weights of the terms
        assert "text_vectorization/idf_weights has 12 values" in refuse(folder / name, "idf_of_other_data")


@pytest.mark.parametrize("name", ["model.weights.h5", "ck"])
def test_formats_without_vocabularies_refuse_those_of_the_builder(save: Save, name: str) -> None:
    from tests.exporter import state_builders

    folder = save(state_builders.text(state_builders.TEXTS))
    message = refuse(folder / name, "text_of_other_data")
    assert "1 not in the format" in message
    assert "export a .keras file, which holds the values that the training used" in message


@pytest.mark.parametrize("name", ["model.weights.h5", "ck"])
def test_formats_without_vocabularies_say_so(save: Save, name: str) -> None:
    from tests.exporter import state_builders

    folder = save(state_builders.text(state_builders.TEXTS))
    opened = open_with(folder / name, "text_of_other_data", ("*/vocabulary",))
    assert opened.restore is not None
    assert "does not hold text_vectorization/vocabulary (11 terms)" in opened.restore.notes[0]
    assert opened.origins["text_vectorization/vocabulary"].kind is OriginKind.INITIALIZER
    assert "text_vectorization/vocabulary has no value" in refuse(folder / name, "text")


@pytest.mark.parametrize("name", ["model.weights.h5", "ck"])
def test_constants_of_the_code_need_no_format_that_holds_them(save: Save, name: str) -> None:
    from tests.exporter import state_builders

    opened = open_with(save(state_builders.scaled()) / name, "scaled")
    assert opened.restore is not None
    assert "does not hold normalization/mean_and_variance (2 values)" in opened.restore.notes[0]


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
def test_layers_in_another_order_do_not_exchange_their_weights(save: Save, name: str) -> None:
    import keras

    from tests.exporter import state_builders

    message = refuse(save(state_builders.heads()) / name, "heads_in_other_order")
    assert "bought/name has 'clicked' in the checkpoint, but 'bought' in the model" in message
    assert open_with(save(state_builders.heads()) / name, "heads_with_other_names").restore is not None
    keras.backend.clear_session()
    saved = (
        save(state_builders.heads_without_names(others=1)) / name
    )  # `dense_1` is the first, in the builder the second
    assert open_with(saved, "heads_without_names").restore is not None


def test_a_lookup_whose_size_is_unknown_is_explained(save: Save) -> None:
    from tests.exporter import state_builders

    file = save(state_builders.one_hot(("red", "blue"))) / "model.keras"
    with pytest.raises(BuilderFailed, match=r"one_hot failed: .*'y/kernel'.*Give the lookup its terms \(vocabulary="):
        open_with(file, "one_hot")


def test_settings_of_layers_are_compared_with_the_file(save: Save) -> None:
    from tests.exporter import state_builders

    file = save(state_builders.prepared()) / "model.keras"
    message = refuse(file, "prepared_with_other_scale")
    assert "scaling/scale has 0.5 in the checkpoint, but 0.25 in the model" in message
    assert "build the layer with the settings of the file" in message
    opened = open_with(file, "prepared_for_logits")
    assert opened.restore is not None
    [note] = opened.restore.notes
    assert "y/activation is 'relu', but the builder has 'linear'" in note
    opened = open_with(file, "prepared")
    assert opened.restore is not None
    assert not opened.restore.notes


def test_models_without_their_vocabulary_are_refused(save: Save) -> None:
    from tests.exporter import state_builders

    with pytest.raises(CheckpointMismatch, match=r"the model functional.* has no text_vectorization\w*/vocabulary"):
        open_live(state_builders.text(), ModelOptions())


def test_terms_that_keras_reads_as_several_keep_their_numbers(tmp_path: Path) -> None:
    """Keras ends a term of its file at every Unicode line end, so that later terms get other numbers."""
    import keras

    for number, term in enumerate(["a\u2028b", "c\x85d", "a\nb"]):
        lookup = keras.layers.StringLookup()
        lookup.adapt([[term], [term], ["z"]])
        word = keras.Input((1,), dtype="string", name="text")
        model = keras.Model(word, keras.layers.Dense(1, name="y")(keras.layers.Embedding(4, 2)(lookup(word))))
        expected = model.predict_on_batch(np.array([["z"]]))
        model.save(tmp_path / f"{number}.keras")
        if "\n" in term:
            with pytest.raises(SourceUnreadable, match="a term contains a line break"):
                open_with(tmp_path / f"{number}.keras", None)
        else:
            opened = open_with(tmp_path / f"{number}.keras", None)
            np.testing.assert_allclose(answer(opened, np.array([[b"z"]])), expected, atol=1e-6)
            assert opened.origins[f"{lookup.name}/vocabulary"].kind is OriginKind.VOCABULARY


def test_a_checkpoint_restores_tables(save: Save) -> None:
    from tests.exporter import state_builders

    trained = state_builders.Table(["c", "b", "a"])
    words = np.array([b"a", b"b", b"c", b"x"])
    folder = save(trained)
    for builder in ("table", "table_of_other_data"):
        opened = open_with(folder / "ck", builder)
        np.testing.assert_array_equal(answer(opened, words), trained(words)["y"])
        assert opened.origins["words"].kind is OriginKind.VOCABULARY
        assert opened.restore is not None
        assert "does not hold fixed (2 entries)" in opened.restore.notes[0]


def test_keras_2_renews_statistics_after_the_restore(save: Save) -> None:
    from tests.exporter import state_builders

    trained = state_builders.keras_2(state_builders.TEXTS, np.arange(8, dtype=np.float32).reshape(2, 4))
    folder = save(trained)
    expected = trained.predict_on_batch(SENTENCES)
    opened = open_with(folder / "ck", "keras_2_with_terms", ("*/vocabulary",))
    np.testing.assert_allclose(answer(opened, SENTENCES), expected, atol=1e-6)
    assert "text_vectorization/vocabulary has no value" in refuse(folder / "ck", "keras_2")
