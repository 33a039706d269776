"""Tests that SavedModels of every builder give the same Predict results as TensorFlow itself."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from tests.support import v1_models
from tests.support.saved_models import predict_request, save_function, save_half_plus_two
from tests.support.served_model import ServedModel
from tpuserve_server.core.terms.errors import FailedPrecondition, InvalidArgument, NotFound
from tpuserve_server.core.terms.servable import VersionFiles
from tpuserve_server.core.terms.types import Array, ServableId
from tpuserve_server.executors.tensorflow import TensorFlowOptions
from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor

WHOLE_LINE, LINE_NUMBER = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER


async def predict(served: ServedModel, signature: str = "", /, **inputs: object) -> dict[str, Array]:
    reply = await served.call("Predict", predict_request(signature, **inputs))
    outputs = predict_pb2.PredictResponse.FromString(reply).outputs
    return {name: tf.make_ndarray(tensor) for name, tensor in outputs.items()}


@pytest.mark.parametrize("legacy", [False, True], ids=["main_op", "legacy_init_op"])
async def test_tf1_tables_are_filled_from_assets(tmp_path: Path, legacy: bool) -> None:
    path = v1_models.save_vocabulary(tmp_path / "1", tmp_path, legacy=legacy)
    v1_models.delete_vocabularies(tmp_path)
    with ServedModel(path) as served:
        assert (await predict(served, words=[b"beta", b"alpha", b"?"]))["ids"].tolist() == [10, 0, -10]
        assert (await predict(served, "lengths", words=[b"beta", b""]))["lengths"].tolist() == [4, 0]
        with pytest.raises(FailedPrecondition, match='Serving signature key "init" not found'):
            await predict(served, "init", words=[b"beta"])


def test_tags_choose_the_graph(tmp_path: Path) -> None:
    path = v1_models.save_vocabulary(tmp_path / "1", tmp_path, legacy=False)
    words = {"words": np.array([b"beta", b"alpha"], object)}
    for tags, expected in ((("serve",), [10, 0]), (("gpu", "serve"), [-10, 0])):
        servable = TensorFlowExecutor(TensorFlowOptions(tags=tags)).load(ServableId("m", 1), VersionFiles(path))
        assert servable.dispatch("serving_default", words, ("ids",)).result()["ids"].tolist() == expected
        servable.close()
    with pytest.raises(NotFound, match=r"Could not find meta graph def matching supplied tags: \{ tpu \}"):
        TensorFlowExecutor(TensorFlowOptions(tags=("tpu",))).load(ServableId("m", 1), VersionFiles(path))


async def test_a_text_saved_model_with_state_in_reference_variables(tmp_path: Path) -> None:
    path = v1_models.save_counter(tmp_path / "1")
    assert [file.name for file in path.glob("saved_model.*")] == ["saved_model.pbtxt"]
    with ServedModel(path) as served:
        for expected in (2.0, 4.0):
            assert (await predict(served, step=np.float32(2)))["output"] == expected
        assert (await predict(served, "reset_counter", step=np.float32(0)))["output"] == 0


def example(**features: tf.train.Feature) -> bytes:
    message: bytes = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    return message


async def test_examples_are_parsed_by_the_graph(tmp_path: Path) -> None:
    x = tf.train.Feature(float_list=tf.train.FloatList(value=[1, 2]))
    name = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"ann"]))
    with ServedModel(v1_models.save_features(tmp_path / "1")) as served:
        outputs = await predict(served, examples=[example(x=x), example(x=x, name=name, tags=name)])
        assert outputs["sum"].tolist() == [3, 3]
        assert outputs["names"].tolist() == [[b"nobody"], [b"ann"]]
        assert outputs["tags"].tolist() == [[b"-"], [b"ann"]]
        with pytest.raises(InvalidArgument, match="Could not parse example input"):
            await predict(served, examples=[b"no example"])


async def test_inputs_with_a_default_may_be_left_out(tmp_path: Path) -> None:
    def scaled(x: tf.Tensor, factor: tf.Tensor, offset: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x * factor + offset}

    vector, scalar = tf.TensorSpec([None], tf.float32, "x"), tf.TensorSpec([], tf.float32, "factor")
    path = save_function(tmp_path / "1", scaled, vector, scalar, tf.TensorSpec([], tf.float32, "offset"))
    v1_models.set_default(path, "serving_default", factor=np.float32(3), offset=np.float32(1))
    x = np.array([1, 2], np.float32)
    with ServedModel(path) as served:
        assert (await predict(served, x=x))["y"].tolist() == [4, 7]
        assert (await predict(served, x=x, factor=np.float32(10)))["y"].tolist() == [11, 21]
        with pytest.raises(InvalidArgument, match=r"Missing but required: \{x\}"):
            await predict(served, factor=np.float32(10))
        with pytest.raises(InvalidArgument, match=r"Sent extra: \{z\}"):
            await predict(served, x=x, z=x)


async def test_unknown_ranks_ragged_and_sparse_parts_and_control_flow(tmp_path: Path) -> None:
    def sums(flat: tf.Tensor, lengths: tf.Tensor, anything: tf.Tensor) -> dict[str, tf.Tensor]:
        rows = tf.RaggedTensor.from_row_lengths(flat, lengths)
        steps = tf.while_loop(lambda n: n < 100, lambda n: n * 2, [tf.size(anything) + 1])[0]
        return {"sums": tf.reduce_sum(rows, axis=1), "same": anything, "steps": steps}

    specs = [
        tf.TensorSpec([None], tf.int64, "flat"),
        tf.TensorSpec([None], tf.int64, "lengths"),
        tf.TensorSpec(None, tf.string, "anything"),
    ]
    with ServedModel(save_function(tmp_path / "1", sums, *specs)) as served:
        assert served.loaded.servable.signatures["serving_default"].inputs["anything"].shape is None
        for anything in (np.array(b"a", object), np.array([[b"b"], [b"c"]], object)):
            outputs = await predict(served, flat=np.array([1, 2, 3]), lengths=np.array([2, 0, 1]), anything=anything)
            assert outputs["sums"].tolist() == [3, 0, 3]
            assert outputs["same"].tolist() == anything.tolist()
            assert outputs["steps"] >= 100


async def test_tf2_modules_with_tables_from_assets(tmp_path: Path) -> None:
    vocabulary = tmp_path / "words.txt"
    vocabulary.write_text("alpha\nbeta")
    module = tf.Module()
    module.table = tf.lookup.StaticVocabularyTable(
        tf.lookup.TextFileInitializer(
            str(vocabulary),
            tf.string,
            tf.lookup.TextFileIndex.WHOLE_LINE,
            tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
        ),
        num_oov_buckets=2,
    )
    module.serve = tf.function(
        lambda words: {"ids": module.table.lookup(words)}, input_signature=[tf.TensorSpec([None], tf.string, "words")]
    )
    words = [b"beta", b"gamma", b"delta"]
    expected = module.serve(tf.constant(words))["ids"].numpy().tolist()
    tf.saved_model.save(module, str(tmp_path / "1"), signatures=module.serve)
    vocabulary.unlink()
    with ServedModel(tmp_path / "1") as served:
        assert (await predict(served, words=words))["ids"].tolist() == expected
        assert expected[0] == 1


async def test_functions_that_ask_for_xla_are_compiled(tmp_path: Path) -> None:
    compiled = tf.function(lambda x: tf.tanh(x) * 2, jit_compile=True)
    path = save_function(tmp_path / "1", lambda x: {"y": compiled(x)}, tf.TensorSpec([None, 2], tf.float32, "x"))
    x = np.array([[0.5, -1]], np.float32)
    with ServedModel(path) as served:
        np.testing.assert_allclose((await predict(served, x=x))["y"], np.tanh(x) * 2, rtol=1e-6)


async def test_frozen_graphs_and_folders_of_more_than_a_saved_model(tmp_path: Path) -> None:
    path = save_half_plus_two(tmp_path / "00000123")
    (path / "assets.extra" / "deep").mkdir(parents=True)
    (path / "assets.extra" / "deep" / "mlmd_uuid").write_text("1234")
    with ServedModel(path) as served:
        assert (await predict(served, x=np.array([[2]], np.float32)))["y"].tolist() == [[3]]
    frozen = save_function(tmp_path / "frozen", lambda x: {"y": x * 2}, tf.TensorSpec([None], tf.float32, "x"))
    for file in (frozen / "variables").iterdir():
        file.unlink()
    (frozen / "variables").rmdir()
    with ServedModel(frozen) as served:
        assert (await predict(served, x=np.array([4], np.float32)))["y"].tolist() == [8]


def keras3_save(path: Path) -> tuple[Array, Array]:
    import keras

    keras.utils.set_random_seed(3)
    inputs = keras.Input((8, 8, 1), name="image")
    hidden = keras.layers.Conv2D(2, 3, activation="relu")(inputs)
    hidden = keras.layers.Dropout(0.5)(keras.layers.GlobalAveragePooling2D()(hidden))
    model = keras.Model(inputs, keras.layers.Dense(3, activation="softmax")(hidden))
    model.export(str(path), verbose=False)
    x = np.random.default_rng(0).random((5, 8, 8, 1), np.float32)
    return x, model.predict(x, verbose=0)


def keras2_save(folder: Path) -> tuple[Array, Array]:
    """Save one model with `save` and with `export`. Return an input and the expected output."""
    script = Path(__file__).parents[2] / "support" / "keras2_model.py"
    subprocess.run([sys.executable, str(script), str(folder)], check=True, capture_output=True, timeout=100)
    return np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6), np.load(folder / "answer.npy")


async def check_answer(path: Path, x: Array, expected: Array) -> None:
    with ServedModel(path) as served:
        (name,) = served.loaded.servable.signatures["serving_default"].inputs
        inputs: dict[str, object] = {name: x}
        (y,) = (await predict(served, "", **inputs)).values()
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
async def test_a_keras_3_model_answers_as_keras_does(tmp_path: Path) -> None:
    await check_answer(tmp_path / "1", *keras3_save(tmp_path / "1"))


@pytest.mark.slow
async def test_keras_2_models_saved_and_exported_answer_as_keras_does(tmp_path: Path) -> None:
    x, expected = keras2_save(tmp_path)
    for how in ("save", "export"):
        await check_answer(tmp_path / how, x, expected)
