"""Tests for the pixel values that an image signature feeds to a model, and their comparison with a file's pixels."""

from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.exporter import builders
from tests.exporter.conftest import Finished
from tests.exporter.served import serve
from tpuserve_exporter.checks.difference import Tolerance
from tpuserve_exporter.checks.raw_image_check import RawAnswer, check_raw_images
from tpuserve_exporter.errors import ParityFailed
from tpuserve_exporter.signatures.raw_images import encode_png
from tpuserve_exporter.terms.signature import Signature, Tensors

pytestmark = [
    pytest.mark.xdist_group(__name__),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

Export = Callable[..., Finished]
FLAGS = ("--batch-sizes", "1,2", "--signature", "photo=image_bytes")
PIXELS = np.random.default_rng(1).integers(0, 256, (2, 6, 8, 3), np.uint8)


def save(path: Path, *before: keras.layers.Layer, shape: tuple[int, ...] = (6, 8, 3)) -> keras.Model:
    """Save a model of `image` → `same`: each output element is a pixel value after the layers `before`."""
    image = keras.Input(shape, name="image")
    value = image
    for layer in before:
        value = layer(value)
    model = keras.Model(image, keras.layers.Flatten(name="same")(keras.layers.ReLU(negative_slope=1.0)(value)))
    model.save(path)
    return model


def served(version: Path) -> np.ndarray:
    files = np.array([encode_png(one) for one in PIXELS], object)
    return serve(version, "photo", image_bytes=files)["same"]


def test_a_model_that_rescales_is_fed_pixels_as_they_are(export: Export, tmp_path: Path) -> None:
    model = save(tmp_path / "m.keras", keras.layers.Rescaling(1 / 127.5, offset=-1))
    finished = export(tmp_path / "m.keras", tmp_path / "m", *FLAGS)
    assert finished.code == 0, finished.err
    assert "photo takes pixels as 0..255, because the model begins with" in finished.out
    np.testing.assert_allclose(served(tmp_path / "m/1"), model(PIXELS.astype(np.float32)), atol=1e-5)


def test_a_scale_before_a_model_that_rescales_is_warned_of(export: Export, tmp_path: Path) -> None:
    save(tmp_path / "m.keras", keras.layers.Rescaling(1 / 255))
    finished = export(tmp_path / "m.keras", tmp_path / "m", *FLAGS, "--image-scale", "0..1")
    assert finished.code == 0
    assert "warning: photo feeds pixels as 0..1, but the model itself begins with" in finished.out
    assert "images are probably scaled twice. Use --image-scale none" in finished.out


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ((), "the model does not show which pixel values it was trained with. Add --image-scale with one of none (0"),
        (
            (keras.layers.Rescaling(2.0, offset=-1),),
            "which suggests 0..1 but does not prove which pixel",
        ),
    ],
    ids=["nothing", "units"],
)
def test_the_scale_is_asked_for(
    export: Export, tmp_path: Path, before: tuple[keras.layers.Layer, ...], message: str
) -> None:
    save(tmp_path / "m.keras", *before)
    finished = export(tmp_path / "m.keras", tmp_path / "m", *FLAGS)
    assert (finished.code, message in finished.err) == (2, True), finished.err


def prepare(mode: str) -> np.ndarray:
    """Prepare images like keras.applications."""
    if mode in ("none", "0..1"):
        return PIXELS.astype(np.float32) / (255 if mode == "0..1" else 1)
    mode = "tf" if mode == "-1..1" else mode
    prepared: np.ndarray = keras.applications.imagenet_utils.preprocess_input(PIXELS.astype(np.float32), mode=mode)
    return prepared


@pytest.mark.parametrize("mode", ["none", "0..1", "-1..1", "torch", "caffe"])
def test_each_scale_is_that_of_keras_applications(export: Export, tmp_path: Path, mode: str) -> None:
    model = save(tmp_path / "m.keras")
    finished = export(tmp_path / "m.keras", tmp_path / "m", *FLAGS, "--image-scale", mode)
    assert finished.code == 0, finished.err
    np.testing.assert_allclose(served(tmp_path / "m/1"), model(prepare(mode)), atol=1e-4)


@pytest.mark.parametrize("mode", ["torch", "caffe"])
def test_a_scale_of_colours_is_refused_for_grey_models(export: Export, tmp_path: Path, mode: str) -> None:
    save(tmp_path / "m.keras", shape=(6, 8, 1))
    finished = export(tmp_path / "m.keras", tmp_path / "m", *FLAGS, "--image-scale", mode)
    assert (finished.code, f"the mean of scale={mode} has 3 channels, but the model takes 1" in finished.err) == (
        2,
        True,
    )


@pytest.mark.parametrize(
    ("dtype", "flags", "message"),
    [
        (
            "int8",
            (),
            "pixels as 0..255 do not fit the input's int8 (-128..127). Set other values, such as scale=1,mean=128",
        ),
        ("uint8", ("--image-scale", "0..1"), "pixels as 0..1 do not fit the input's uint8 (0..255)"),
        ("uint8", ("--image-scale", "caffe"), "pixels as -124..151 do not fit the input's uint8 (0..255)"),
    ],
)
def test_values_that_integers_cannot_hold_are_refused(
    export: Export, tmp_path: Path, dtype: str, flags: tuple[str, ...], message: str
) -> None:
    builders.passed_on([6, 8, 3], dtype).save(tmp_path / "m.keras")
    finished = export(tmp_path / "m.keras", tmp_path / "m", *FLAGS, *flags)
    assert (finished.code, message in finished.err) == (2, True), finished.err


class Answers:
    """A model that returns constant outputs."""

    def __init__(self, value: float) -> None:
        self._value = value

    def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        return {"same": np.full((2, 1), self._value, np.float32)}


def test_files_that_answer_otherwise_than_their_pixels_fail() -> None:
    raw = RawAnswer({}, {"same": np.ones((2, 1), np.float32)})
    check_raw_images(Signature("photo", {}, {}), raw, Answers(1.0), Tolerance(1e-5, 1e-4))
    with pytest.raises(ParityFailed, match="answers to PNG files and to their pixels differ: output 'same' differs"):
        check_raw_images(Signature("photo", {}, {}), raw, Answers(1 / 255), Tolerance(1e-5, 1e-4))
