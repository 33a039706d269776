"""Tests that ragged inputs and outputs become values and row splits, for every kind of source."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.exporter.conftest import read_manifest
from tpuserve_exporter.api import export
from tpuserve_exporter.errors import BuilderFailed, CannotLower, OptionConflict, SamplesUnfit, SessionLoadFailed
from tpuserve_exporter.models.ragged import name_splits
from tpuserve_exporter.models.served_function import ServedFunction
from tpuserve_exporter.version.loaded_model import open_session

pytestmark = [
    pytest.mark.xdist_group("exporter"), pytest.mark.usefixtures("tensorflow"),
]  # fmt: skip

TABLE = np.arange(20, dtype=np.float32).reshape(10, 2)


def publish(source: Any, base: Path, **options: Any) -> Path:  # noqa: ANN401 - any source and options
    export(source, base, batch_sizes=(1, 4), progress=False, **options)
    return base / "1"


def call(version: Path, **inputs: Any) -> Any:  # noqa: ANN401 - arrays
    """Run a version in a session, like servers."""
    with open_session(version) as session:
        return session.run(session.signatures["serving_default"], inputs)


def pair_of(version: Path, side: str, name: str) -> Any:  # noqa: ANN401 - JSON
    return read_manifest(version)["signatures"]["serving_default"][side][name].get("row_splits")


def save_bags(path: Path, output: str = "ragged") -> Path:
    """Save a model with TensorFlow alone: `ids` ragged [rows, ?] and `scale` [rows] → sums of a table's rows."""
    import tensorflow as tf

    class Bags(tf.Module):  # type: ignore[misc]  # tensorflow is untyped
        def __init__(self) -> None:
            self.table = tf.Variable(TABLE)

        @tf.function  # type: ignore[untyped-decorator]  # as above
        def __call__(self, ids: Any, scale: Any) -> dict[str, Any]:  # noqa: ANN401 - tensors
            taken = tf.ragged.map_flat_values(lambda values: tf.gather(self.table, values), ids)
            doubled = ids * 2 if output == "ragged" else (ids * 2).to_sparse()
            return {"sum": tf.reduce_sum(taken, axis=1) * scale[:, None], "doubled": doubled}

    module = Bags()
    # A trace for other dtypes: only the served trace counts.
    module(tf.ragged.constant([[1]], tf.int64), tf.constant([1.0]))
    specs = tf.RaggedTensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.float32, name="scale")
    tf.saved_model.save(module, str(path), signatures=module.__call__.get_concrete_function(*specs))
    return path


def check_bags(version: Path) -> None:
    assert pair_of(version, "inputs", "ids") == ["ids_1"]
    assert pair_of(version, "outputs", "doubled") == ["doubled_1"]
    entry = read_manifest(version)["signatures"]["serving_default"]
    assert (entry["batch_sizes"], entry["rows_independent"]) == ([], False)
    splits, scale = np.array([0, 2, 2, 3], np.int64), np.array([1, 1, 2], np.float32)
    outputs = call(version, ids=np.array([1, 2, 3], np.int32), ids_1=splits, scale=scale)
    np.testing.assert_array_equal(outputs["sum"], [TABLE[1] + TABLE[2], [0, 0], 2 * TABLE[3]])
    np.testing.assert_array_equal(outputs["doubled"], [2, 4, 6])
    np.testing.assert_array_equal(outputs["doubled_1"], splits)


def test_a_saved_model_of_tensorflow_says_what_is_ragged_and_says_it_again(tmp_path: Path) -> None:
    source = save_bags(tmp_path / "source")
    copied = publish(source, tmp_path / "copied")
    check_bags(copied)
    check_bags(publish(copied, tmp_path / "again"))
    check_bags(publish(source, tmp_path / "frozen", freeze=True))
    with pytest.raises(CannotLower, match="serving_default: 'ids' is ragged, but a device program has fixed shapes"):
        publish(source, tmp_path / "programs", device_programs=True)


def test_no_rows_at_all_prove_nothing_and_an_empty_row_is_an_example(tmp_path: Path) -> None:
    source = save_bags(tmp_path / "source")
    nothing = {"ids": np.zeros(0, np.int32), "ids_1": np.zeros(1, np.int64), "scale": np.zeros(0, np.float32)}
    with pytest.raises(SamplesUnfit, match="input 'ids' has no rows, because 'ids_1' needs at least two row splits"):
        publish(source, tmp_path / "base", check=nothing)
    np.savez(tmp_path / "sums.npz", sum=np.zeros((1, 2), np.float32))
    example = ('json:{"ids": [], "ids_1": [0, 0], "scale": [1]}', str(tmp_path / "sums.npz"))
    publish(source, tmp_path / "base", examples=[example])


def test_an_output_that_no_server_gives_is_named(tmp_path: Path) -> None:
    with pytest.raises(SessionLoadFailed, match="'doubled' of signature serving_default is a SparseTensor"):
        publish(save_bags(tmp_path / "source", output="sparse"), tmp_path / "base")


def test_a_ragged_input_of_keras_is_no_dense_one(tmp_path: Path) -> None:
    import keras
    import tensorflow as tf

    class Bag(keras.layers.Layer):  # type: ignore[misc]  # keras is untyped
        def compute_output_spec(self, ids: Any) -> Any:  # noqa: ANN401 - Keras' tensors
            return keras.KerasTensor((None, 2))

        def call(self, ids: Any) -> Any:  # noqa: ANN401 - a ragged tensor
            return tf.reduce_sum(tf.ragged.map_flat_values(lambda values: tf.gather(TABLE, values), ids), axis=1)

    ids = keras.Input((None,), dtype="int32", ragged=True, name="ids")
    model = keras.Model(ids, Bag(name="bag")(ids))
    version = publish(model, tmp_path / "base")
    assert pair_of(version, "inputs", "ids") == ["ids_1"]
    outputs = call(version, ids=np.array([4, 5], np.int32), ids_1=np.array([0, 0, 2], np.int64))
    np.testing.assert_array_equal(outputs["bag"], [[0, 0], TABLE[4] + TABLE[5]])
    with pytest.raises(CannotLower, match="the model: 'ids' is ragged, but a device program has fixed shapes"):
        publish(model, tmp_path / "programs", device_programs=True)
    with pytest.raises(OptionConflict, match="the model's input ids is ragged"):
        publish(model, tmp_path / "examples", signature="serving_default=tf_example")
    with pytest.raises(OptionConflict, match="--batching in-graph joins rows, but row splits cannot be joined"):
        publish(model, tmp_path / "batched", batching="in-graph")


def words() -> ServedFunction:
    """Return a function of strings with two ragged dimensions, which counts the strings of each row."""
    import tensorflow as tf

    def count(words: Any) -> dict[str, Any]:  # noqa: ANN401 - a ragged tensor
        return {"count": tf.reduce_sum(words.row_lengths(axis=2), axis=1), "words": tf.strings.upper(words)}

    return ServedFunction({"words": tf.RaggedTensorSpec([None, None, None], tf.string, 2)}, count, [])


def test_strings_may_be_ragged_in_two_dimensions(tmp_path: Path) -> None:
    version = publish(words(), tmp_path / "words")
    assert pair_of(version, "inputs", "words") == pair_of(version, "outputs", "words") == ["words_1", "words_2"]
    outputs = call(version, words=np.array([b"a", b"b"], object), words_1=np.array([0, 1, 1]), words_2=np.array([0, 2]))
    assert outputs["count"].tolist() == [2, 0]
    assert outputs["words"].tolist() == [b"A", b"B"]


def test_a_sparse_output_is_an_export_error(tmp_path: Path) -> None:
    import tensorflow as tf

    def split(text: Any) -> dict[str, Any]:  # noqa: ANN401 - a tensor
        return {"tokens": tf.strings.split(text).to_sparse()}

    function = ServedFunction({"text": tf.TensorSpec([None], tf.string, name="text")}, split, [])
    with pytest.raises(BuilderFailed, match="output 'tokens' is a SparseTensor"):
        publish(function, tmp_path / "base")


def test_rows_of_a_fixed_number_have_splits_of_one_more(tmp_path: Path) -> None:
    import tensorflow as tf

    spec = tf.RaggedTensorSpec([3, None, 4], tf.float32, 1, tf.int32)
    version = publish(ServedFunction({"v": spec}, lambda v: {"sum": tf.reduce_sum(v, axis=1)}, []), tmp_path / "base")
    inputs = read_manifest(version)["signatures"]["serving_default"]["inputs"]
    assert inputs == {
        "v": {"dtype": "float32", "shape": [None, 4], "row_splits": ["v_1"]},
        "v_1": {"dtype": "int32", "shape": [4]},
    }


def test_the_parts_of_a_sparse_input_are_named(tmp_path: Path) -> None:
    import tensorflow as tf

    module = tf.Module()
    module.dense = tf.function(
        lambda x: {"y": tf.sparse.to_dense(x)}, input_signature=[tf.SparseTensorSpec([None, 5], tf.float32)]
    )
    tf.saved_model.save(module, str(tmp_path / "sparse"), signatures=module.dense)
    parts = {"x": np.array([[0, 2]]), "x_1": np.array([1.5], np.float32), "x_2": np.array([1, 5])}
    done = export(tmp_path / "sparse", tmp_path / "base", check=parts, batch_sizes=(1,), progress=False)
    assert "its indices as 'x', its values as 'x_1' and its dense shape as 'x_2'" in done.warnings[0]
    assert call(tmp_path / "base/1", **parts)["y"].tolist() == [[0, 0, 1.5, 0, 0]]


def test_row_splits_take_no_name_that_there_is() -> None:
    assert name_splits({"x": 0, "x_1": 0}, {"x": 2}) == {"x": ("x_2", "x_3")}
