"""Tests of the list of functions that layers of Keras 2 files may call, against TensorFlow and real models."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest

from tests.exporter.conftest import Finished
from tpuserve_exporter.sources.keras.unsafe_content import FUNCTIONS_FILE, find_unsafe_config, read_functions

# Words in the names of parameters for files and libraries.
_DANGERS = {"file", "filename", "path", "dir", "directory", "library", "stream", "descriptor"}


def images() -> Any:  # noqa: ANN401 - a Keras 2 model is untyped, here and below
    import tensorflow as tf
    import tf_keras

    image = tf_keras.Input((32, 32, 3))
    small = tf.image.random_flip_left_right(tf.image.resize(image, (16, 16)))
    scaled = tf_keras.applications.resnet50.preprocess_input(tf.cast(small, tf.float32) / 255.0 - 0.5)
    cut = tf.abs(-(scaled[:, :8, 1:, ::2] ** 2))
    rows = tf.concat([tf.reshape(cut, (tf.shape(cut)[0], -1))] * 2, -1)
    first, second = tf.split(tf.clip_by_value(rows, 0, 6), 2, -1)
    chosen = tf.gather(tf.where(first > second, first, second), [0, 1, 2], axis=1)
    product = tf.matmul(chosen, tf.transpose(chosen)) @ tf.stop_gradient(tf.eye(tf.shape(chosen)[0]))
    summed = tf.reduce_mean(tf.nn.softmax(tf.einsum("ij->ji", product)), -1, keepdims=True)
    return tf_keras.Model(image, tf.squeeze(tf.math.log(summed + 1e-6), 1))


def sampling() -> Any:  # noqa: ANN401
    import tensorflow as tf
    import tf_keras

    features = tf_keras.Input((4,))
    mean = tf_keras.layers.Dense(2)(features)
    noise = tf_keras.backend.random_normal(tf.shape(mean))
    sample = tf_keras.backend.l2_normalize(mean + tf.exp(mean) * noise, -1)
    return tf_keras.Model(features, tf_keras.backend.concatenate([sample, sample]))


def texts() -> Any:  # noqa: ANN401
    import tensorflow as tf
    import tf_keras

    text = tf_keras.Input((), dtype=tf.string)
    words = tf.strings.split(tf.strings.regex_replace(tf.strings.lower(text), "a", "b"))
    again = tf.RaggedTensor.from_row_splits(words.values, words.row_splits)
    return tf_keras.Model(text, tf.strings.length(again.to_tensor()))


def sequences() -> Any:  # noqa: ANN401
    import tf_keras

    steps = tf_keras.Input((None, 8))
    attended = tf_keras.layers.LayerNormalization()(steps + tf_keras.layers.MultiHeadAttention(2, 4)(steps, steps))
    cells = [tf_keras.layers.LSTMCell(3), tf_keras.layers.GRUCell(2)]
    return tf_keras.Model(
        steps,
        tf_keras.layers.RNN(cells)(
            tf_keras.layers.Bidirectional(tf_keras.layers.GRU(3, return_sequences=True))(attended)
        ),
    )


def mixed() -> Any:  # noqa: ANN401
    import tensorflow as tf
    import tf_keras

    features = tf_keras.Input((8,))
    dense = tf_keras.layers.Dense(
        2, tf.nn.silu, kernel_regularizer="l2", kernel_constraint="max_norm", dtype="mixed_bfloat16"
    )
    return tf_keras.Model(features, tf_keras.layers.Activation(tf_keras.activations.gelu)(dense(features)))


def preprocessing() -> Any:  # noqa: ANN401
    import tf_keras
    from tf_keras import layers

    image = tf_keras.Input((32, 32, 3))
    steps = [layers.RandomFlip(), layers.RandomRotation(0.1), layers.Rescaling(1 / 255), layers.Resizing(8, 8)]
    steps += [layers.Normalization(mean=0.0, variance=1.0), layers.CenterCrop(4, 4)]
    return tf_keras.Sequential([image, *steps])


def vocabularies() -> Any:  # noqa: ANN401
    import tensorflow as tf
    import tf_keras
    from tf_keras import layers

    text = tf_keras.Input((1,), dtype=tf.string)
    ids = layers.TextVectorization(vocabulary=["a", "b"], output_sequence_length=3)(text)
    return tf_keras.Model(text, [ids, layers.StringLookup(vocabulary=["a", "b"])(text)])


def application(name: str) -> Callable[[], Any]:
    def build() -> Any:  # noqa: ANN401
        import tf_keras

        return getattr(tf_keras.applications, name)(weights=None, input_shape=(64, 64, 3), classes=3)

    return build


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "build",
    [images, sampling, texts, sequences, mixed, preprocessing, vocabularies]
    + [pytest.param(application(one), id=one) for one in ("MobileNetV3Small", "EfficientNetV2B0", "ConvNeXtTiny")],
)
@pytest.mark.usefixtures("tensorflow")
def test_ordinary_models_of_keras_2_pass(build: Callable[[], Any]) -> None:
    assert list(find_unsafe_config(json.loads(build().to_json()), keras_2=True)) == []


@pytest.mark.usefixtures("tensorflow")
def test_the_list_has_only_functions_of_tensorflow_that_name_no_file() -> None:
    import tf_keras  # noqa: F401 - registers the names of keras
    from tensorflow.python.util.tf_export import get_symbol_from_name

    names = read_functions(FUNCTIONS_FILE.read_text(encoding="utf-8"))
    found = {one: get_symbol_from_name(one) or get_symbol_from_name(f"compat.v1.{one}") for one in names}
    assert [one for one, function in found.items() if function is None] == []
    assert [one for one, function in found.items() if inspect.isclass(function)] == []
    for name in names:
        for function in filter(None, (get_symbol_from_name(name), get_symbol_from_name(f"compat.v1.{name}"))):
            parameters = inspect.signature(function).parameters
            assert [one for one in parameters if _DANGERS & set(one.split("_"))] == [], name


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:You are saving your model as an HDF5:UserWarning")
@pytest.mark.usefixtures("tensorflow")
def test_a_file_of_keras_2_cannot_copy_files(export: Callable[..., Finished], tmp_path: Path) -> None:
    import tf_keras

    (tmp_path / "secret.txt").write_text("secret")
    features = tf_keras.Input((2,), name="features")
    tf_keras.Model(features, tf_keras.layers.Dense(1)(features)).save(tmp_path / "attack.h5")
    call = [["_CONSTANT_VALUE", -1, str(tmp_path / "secret.txt"), {"dst": str(tmp_path / "copied.txt")}]]
    copy = {"name": "copy", "trainable": True, "dtype": "float32", "function": "io.gfile.copy"}
    with h5py.File(tmp_path / "attack.h5", "a") as file:
        config = json.loads(file.attrs["model_config"])
        config["config"]["layers"].append(
            {"class_name": "TFOpLambda", "name": "copy", "config": copy, "inbound_nodes": call}
        )
        file.attrs["model_config"] = json.dumps(config)
    finished = export(tmp_path / "attack.h5", tmp_path / "base")
    assert finished.code == 11
    assert "layer copy calls io.gfile.copy" in " ".join(finished.err.split())
    assert not (tmp_path / "copied.txt").exists()
