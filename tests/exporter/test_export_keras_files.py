"""Tests for Keras 2 and Keras 3 files, whole or weights alone: matching files are served, mismatches are all listed."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.exporter import builders
from tests.exporter.conftest import Finished, read_manifest
from tests.exporter.served import serve_rows
from tests.exporter.test_weights_choice import ROWS
from tpuserve_exporter.models.naming import input_specs
from tpuserve_exporter.options.export_options import ModelOptions

pytestmark = [
    pytest.mark.xdist_group(__name__),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # from Keras' saving code
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file"),
]

Export = Callable[..., Finished]
SIZES = ("--batch-sizes", "2")


def model_option(name: str) -> tuple[str, ...]:
    return ("--model", f"tests.exporter.builders:{name}", *SIZES)


@pytest.fixture(scope="module")
def files(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save `builders.tiny` after three steps with `use_ema`, in every format of Keras 3."""
    import keras

    model = builders.tiny()
    model.compile(keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.5), loss="mse")
    for _ in range(3):
        model.train_on_batch(ROWS, np.ones((2, 2), np.float32))
    directory = tmp_path_factory.mktemp("files")
    for name in ("tiny.keras", "tiny.h5"):
        model.save(directory / name)
    model.save_weights(directory / "tiny.weights.h5")
    np.save(directory / "trained.npy", model(ROWS).numpy())
    model.optimizer.finalize_variable_values(model.trainable_variables)
    np.save(directory / "averaged.npy", model(ROWS).numpy())
    return directory


@pytest.mark.parametrize("name", ["tiny.keras", "tiny.h5", "tiny.weights.h5"])
@pytest.mark.parametrize(
    ("builder", "problems"),
    [
        ("tiny_with_extra", ["extra/kernel missing float32[4, 4] -", "extra/bias missing float32[4] -"]),
        ("tiny --model-arg units=5", ["hidden/kernel shape differs float32[3, 5]", "hidden/bias shape differs",
                                      "scores/kernel shape differs float32[5, 2] float32[4, 2]"]),
    ],
    ids=["missing", "shape"],
)  # fmt: skip
def test_all_that_does_not_fit_is_listed(
    export: Export, files: Path, tmp_path: Path, name: str, builder: str, problems: list[str]
) -> None:
    """Check Keras 3's layout by position: it reports the third layer's weights as missing, and the list is complete."""
    finished = export(files / name, tmp_path / "tiny", *model_option(builder.split()[0]), *builder.split()[1:])
    assert finished.code == 2, finished.err
    table = " ".join(finished.err.split())
    if "extra" in builder and name != "tiny.h5":
        problems = [
            "extra/kernel shape differs float32[4, 4] float32[4, 2]",
            "scores/kernel missing",
            "scores/bias mis",
        ]
    for problem in problems:
        assert problem in table
    assert not (tmp_path / "tiny").exists()


@pytest.mark.parametrize("name", ["tiny.keras", "tiny.h5", "tiny.weights.h5"])
def test_what_the_model_lacks_is_unused(export: Export, files: Path, tmp_path: Path, name: str) -> None:
    finished = export(files / name, tmp_path / "tiny", *model_option("headless"), "--json")
    assert finished.code == 2
    unused = [one["name"] for one in finished.document["restore"]["variables"] if one["fate"] == "unused"]
    paths = name != "tiny.h5"
    assert unused == (["layers/dense_1/vars/0", "layers/dense_1/vars/1"] if paths else ["scores/kernel", "scores/bias"])
    allowed = export(files / name, tmp_path / "tiny", *model_option("headless"), "--allow-unused", f"{unused[0][:-1]}*",
                     "--allow-unused", unused[1])  # fmt: skip
    assert allowed.code == 0, allowed.err


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("tiny.keras", (), "averaged"),
        ("tiny.keras", ("--weights", "raw"), "trained"),
        ("tiny.h5", (), "averaged"),
        ("tiny.keras", model_option("tiny"), "averaged"),
        ("tiny.h5", (*model_option("tiny"), "--weights", "ema"), "averaged"),
        ("tiny.weights.h5", model_option("tiny"), "trained"),
    ],
)
def test_averages_that_the_optimizer_kept_are_taken(
    export: Export, files: Path, tmp_path: Path, name: str, options: tuple[str, ...], expected: str
) -> None:
    finished = export(files / name, tmp_path / "tiny", *SIZES, *options)
    assert finished.code == 0, finished.err
    assert ("used the moving averages of 4 of 4 variables" in finished.out) is (expected == "averaged")
    np.testing.assert_allclose(serve_rows(tmp_path / "tiny/1", ROWS), np.load(files / f"{expected}.npy"), atol=1e-6)


def test_names_that_keras_wrote_in_parts_are_read(
    export: Export, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read a list of names that Keras splits.

    The older layout does so for hundreds of layers, when the list exceeds the limit of an HDF5 attribute.
    """
    import keras

    model = keras.saving.load_model(files / "tiny.keras")
    monkeypatch.setattr("keras.src.legacy.saving.legacy_h5_format.HDF5_OBJECT_HEADER_LIMIT", 60)
    model.save(tmp_path / "parts.h5")
    finished = export(tmp_path / "parts.h5", tmp_path / "tiny", *model_option("tiny"), "--weights", "ema")
    assert finished.code == 0, finished.err
    np.testing.assert_allclose(serve_rows(tmp_path / "tiny/1", ROWS), np.load(files / "averaged.npy"), atol=1e-6)


def test_that_a_file_does_not_tell_of_averages_is_said(export: Export, files: Path, tmp_path: Path) -> None:
    message = "used the weights as trained: tiny.weights.h5 does not show whether its optimizer kept averages"
    for weights in ("auto", "raw"):
        options = (*model_option("tiny"), *SIZES, "--weights", weights, "--dry-run")
        finished = export(files / "tiny.weights.h5", tmp_path / "tiny", *options)
        assert (finished.code, message in finished.out) == (0, weights == "auto"), finished.err
    finished = export(files / "tiny.weights.h5", tmp_path / "tiny", *model_option("tiny"), "--weights", "ema")
    assert finished.code == 2
    assert "--weights ema: tiny.weights.h5 does not show what its optimizer kept" in finished.err


def test_paths_in_a_file_are_renamed(export: Export, tmp_path: Path) -> None:
    trained = builders.tiny()
    trained.save_weights(tmp_path / "tiny.weights.h5")
    rename = ("--rename", "layers/dense_1/=layers/dense_2/")
    finished = export(tmp_path / "tiny.weights.h5", tmp_path / "tiny", *model_option("tiny_with_extra"), *rename)
    assert finished.code == 2
    table = " ".join(finished.err.split())
    assert "extra/kernel missing float32[4, 4] -" in table
    assert "scores/kernel" not in table


def test_other_float_dtypes_are_cast_and_counted(export: Export, tmp_path: Path) -> None:
    builders.tiny(dtype="bfloat16").save_weights(tmp_path / "half.weights.h5")
    finished = export(tmp_path / "half.weights.h5", tmp_path / "tiny", *model_option("tiny"), "--json")
    assert finished.code == 0, finished.out
    assert finished.document["restore"]["counts"]["cast"] == 4


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_a_lambda_is_run_on_request(export: Export, tensorflow: None, tmp_path: Path, suffix: str) -> None:
    import keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Lambda(lambda x: x * 2, name="twice", output_shape=(3,))])
    model.save(tmp_path / f"twice{suffix}")
    assert export(tmp_path / f"twice{suffix}", tmp_path / "twice", *SIZES, "--unsafe").code == 0
    np.testing.assert_allclose(serve_rows(tmp_path / "twice/1", ROWS), ROWS * 2)


@pytest.fixture(scope="module")
def built_from_data(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a Sequential model without `keras.Input`, which Keras built from a batch of training, and its output."""
    import keras

    model = keras.Sequential([keras.layers.Dense(4, "relu"), keras.layers.Dense(2, name="scores")])
    model.compile("adam", "mse")
    model.fit(np.repeat(ROWS, 8, axis=0), np.ones((16, 2), np.float32), batch_size=16, verbose=0)
    assert model.inputs[0].shape == (16, 3)
    path = tmp_path_factory.mktemp("built") / "built.keras"
    model.save(path)
    np.save(path.with_name("trained.npy"), model(ROWS).numpy())
    return path


def test_the_batch_of_training_does_not_fix_the_rows_of_requests(
    export: Export, built_from_data: Path, tmp_path: Path
) -> None:
    finished = export(built_from_data, tmp_path / "built", "--batch-sizes", "1,2", "--json")
    assert finished.code == 0, finished.err
    assert read_manifest(tmp_path / "built/1")["signatures"]["serving_default"]["inputs"]["inputs"]["shape"] == [
        None,
        3,
    ]
    expected = np.load(built_from_data.with_name("trained.npy"))
    np.testing.assert_allclose(serve_rows(tmp_path / "built/1", ROWS), expected, rtol=1e-5)


def test_a_fixed_batch_can_be_requested(export: Export, built_from_data: Path, tmp_path: Path) -> None:
    finished = export(built_from_data, tmp_path / "built", "--input", "inputs:float32[16,3]")
    assert finished.code == 0, finished.err
    assert read_manifest(tmp_path / "built/1")["signatures"]["serving_default"]["inputs"]["inputs"]["shape"] == [16, 3]


def test_a_stateful_layer_keeps_the_batch_of_training(tensorflow: None) -> None:
    import keras

    model = keras.Sequential([keras.layers.LSTM(2, stateful=True)])
    model.compile("adam", "mse")
    model.fit(np.zeros((4, 5, 3)), np.zeros((4, 2)), batch_size=4, verbose=0)
    specs = input_specs(model, ModelOptions())[1]
    assert specs["inputs"].shape.as_list() == [4, 5, 3]


@pytest.fixture(scope="module")
def keras_2_files(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import tf_keras

    tf_keras.layers.Dense(1).build((1,))  # shifts the numbering of the model's layers
    layers = [tf_keras.layers.Dense(4, "relu"), tf_keras.layers.Dense(2)]
    model = tf_keras.Sequential([tf_keras.Input((3,)), *layers])
    directory = tmp_path_factory.mktemp("keras2")
    model.compile(tf_keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.5), loss="mse")
    for _ in range(3):
        model.train_on_batch(ROWS, np.ones((2, 2), np.float32))
    for name in ("old.keras", "old.h5"):
        model.save(directory / name)
    for name in ("weights.h5", "old.weights.h5"):
        model.save_weights(directory / name)
    np.save(directory / "trained.npy", model(ROWS).numpy())
    model.optimizer.finalize_variable_values(model.trainable_variables)
    np.save(directory / "averaged.npy", model(ROWS).numpy())
    return directory


@pytest.fixture(scope="module")
def keras_2_operations(tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save `ops.h5`, a Keras 2 model with tensor operations between layers, and `ops.npy`, its output for ROWS."""
    import tensorflow as tf
    import tf_keras

    features = tf_keras.Input((3,), name="features")
    hidden = tf.nn.relu(tf_keras.layers.Dense(4)(features / 2.0)) + 1
    model = tf_keras.Model(features, tf_keras.layers.Dense(2, name="scores")(hidden))
    directory = tmp_path_factory.mktemp("operations")
    model.save(directory / "ops.h5")
    np.save(directory / "ops.npy", model(ROWS).numpy())
    return directory


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:You are saving your model as an HDF5:UserWarning")
def test_an_h5_file_that_keras_3_cannot_read_is_read_by_keras_2(
    export: Export, keras_2_operations: Path, tmp_path: Path
) -> None:
    finished = export(keras_2_operations / "ops.h5", tmp_path / "old", *SIZES)
    assert finished.code == 0, finished.err
    received = serve_rows(tmp_path / "old/1", ROWS)
    np.testing.assert_allclose(received, np.load(keras_2_operations / "ops.npy"), atol=1e-6)


def test_a_model_that_keras_cannot_build_is_to_be_built_by_a_function(export: Export, tmp_path: Path) -> None:
    import h5py
    import keras

    keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save(tmp_path / "new.h5")
    with h5py.File(tmp_path / "new.h5", "a") as file:
        file.attrs["model_config"] = file.attrs["model_config"].replace('"units"', '"units_of_a_later_keras"')
    finished = export(tmp_path / "new.h5", tmp_path / "new", *SIZES)
    assert finished.code == 6
    assert "cannot read new.h5: " in finished.err
    assert ". Name a function that builds the model, --model pkg.module:function" in finished.err.replace("\n", " ")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("old.keras", (), "averaged"),
        ("old.keras", ("--weights", "raw"), "trained"),
        ("old.h5", (), "averaged"),
        ("old.keras", model_option("unnamed_relu"), "averaged"),
        ("old.h5", (*model_option("unnamed_relu"), "--weights", "ema"), "averaged"),
        ("weights.h5", model_option("unnamed_relu"), "trained"),
        ("old.weights.h5", model_option("unnamed_relu"), "trained"),
    ],
)
def test_files_of_keras_2_are_served(
    export: Export, keras_2_files: Path, tmp_path: Path, name: str, options: tuple[str, ...], expected: str
) -> None:
    finished = export(keras_2_files / name, tmp_path / "old", *SIZES, *options)
    assert finished.code == 0, finished.err
    np.testing.assert_allclose(
        serve_rows(tmp_path / "old/1", ROWS), np.load(keras_2_files / f"{expected}.npy"), atol=1e-6
    )
    assert read_manifest(tmp_path / "old/1")["compute_dtype"] == "float32"
