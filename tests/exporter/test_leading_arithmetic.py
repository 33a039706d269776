"""Tests that the exporter finds a model's leading arithmetic and the pixel values that it expects."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tpuserve_exporter.models.keras_serving import serve_keras
from tpuserve_exporter.models.served_function import ServedFunction
from tpuserve_exporter.options.export_options import ModelOptions
from tpuserve_exporter.signatures.leading import LeadingArithmetic, find_leading

pytestmark = [pytest.mark.xdist_group(__name__)]

SHAPE = (16, 16, 3)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
layers = keras.layers


def leading_of(function: ServedFunction) -> LeadingArithmetic:
    return find_leading(function.trace()[1], list(function.inputs), "image")


def of_layers(*before: Any, dtype: str = "float32") -> LeadingArithmetic:  # noqa: ANN401 - layers or functions
    image = keras.Input(SHAPE, name="image", dtype=dtype)
    value = image
    for one in before:
        value = one(value)
    model = keras.Model(image, layers.GlobalAveragePooling2D()(layers.Conv2D(2, 3)(value)))
    return leading_of(serve_keras(model, ModelOptions()))


def of_function(call: Callable[[tf.Tensor], tf.Tensor], *trackables: object) -> LeadingArithmetic:
    kernel = tf.Variable(tf.zeros([3, 3, 3, 2]))
    served = ServedFunction(
        {"image": tf.TensorSpec([None, *SHAPE], tf.float32, name="image")},
        lambda image: {"y": tf.nn.conv2d(call(image), kernel, 1, "SAME")},
        [kernel, *trackables],
    )
    return leading_of(served)


def normalization(mean: Any, variance: Any) -> Any:  # noqa: ANN401 - numbers or lists, and a layer
    return layers.Normalization(mean=mean, variance=variance)


def submodel(*inside: Any) -> keras.Model:  # noqa: ANN401 - layers
    return keras.Sequential([keras.Input(SHAPE), *inside, layers.ReLU()])


@pytest.mark.parametrize(
    "before",
    [
        (layers.Rescaling(1 / 255),),
        (layers.Rescaling(1 / 127.5, offset=-1),),
        (layers.Resizing(8, 8), layers.Rescaling(1 / 255)),
        (layers.RandomFlip(), layers.ZeroPadding2D(1), layers.Rescaling(1 / 255)),
        (layers.Rescaling(1 / 255), normalization(MEAN, np.square(STD))),
        (normalization([123.675, 116.28, 103.53], np.square([58.395, 57.12, 57.375])),),
        (keras.applications.resnet50.preprocess_input,),
        (keras.applications.densenet.preprocess_input,),
        (keras.applications.mobilenet_v2.preprocess_input,),
        (layers.Permute((2, 1, 3)), layers.Reshape(SHAPE), layers.Rescaling(1 / 255)),
        (submodel(layers.Rescaling(1 / 255)),),
        (submodel(submodel(layers.Rescaling(1 / 255))),),
    ],
    ids=[
        "0..1", "-1..1", "resized", "augmented", "normalised", "normalised bytes", "caffe", "torch", "tf", "moved",
        "nested", "nested twice",
    ],
)  # fmt: skip
def test_what_is_for_bytes_is_found(before: tuple[Any, ...]) -> None:
    leading = of_layers(*before)
    assert leading.is_for_bytes
    assert not leading.is_for_units
    assert str(leading)


@pytest.mark.parametrize(
    ("before", "units"),
    [
        ((), False),
        ((layers.Conv2D(3, 1), layers.Rescaling(1 / 255)), False),
        ((layers.Rescaling(2.0, offset=-1),), True),
        ((normalization(MEAN, np.square(STD)),), True),
        ((layers.Rescaling(255.0), keras.applications.resnet50.preprocess_input), True),
        ((layers.Rescaling(1 / 255**2),), False),
        ((layers.Rescaling(1.0),), False),
        ((layers.BatchNormalization(),), False),
    ],
    ids=["none", "later", "0..1 to -1..1", "normalised units", "units to bytes", "twice", "by one", "fresh batch norm"],
)
def test_what_is_not_for_bytes_is_not_taken_for_it(before: tuple[Any, ...], units: bool) -> None:
    leading = of_layers(*before)
    assert (leading.is_for_bytes, leading.is_for_units) == (False, units)


def test_a_batch_norm_with_statistics_of_bytes_tells() -> None:
    norm = layers.BatchNormalization()
    norm.build((None, *SHAPE))
    norm.set_weights([np.ones(3), np.zeros(3), np.full(3, 120.0), np.full(3, 60.0**2)])
    assert of_layers(norm).is_for_bytes


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float16"])
def test_a_cast_comes_between(policy: str) -> None:
    assert of_layers(layers.Rescaling(1 / 255, dtype=policy)).is_for_bytes


def test_two_ways_of_an_image_have_to_agree() -> None:
    assert of_function(lambda image: tf.concat([image / 255, 1 - image / 255], -1)[..., :3]).is_for_bytes
    assert not of_function(lambda image: image / 255 + tf.nn.max_pool(image, 3, 1, "SAME")).is_for_bytes


def test_functions_are_followed_with_what_they_capture() -> None:
    std = tf.Variable(STD)

    @tf.function  # type: ignore[untyped-decorator]  # TensorFlow types it for some calls
    def normalise(image: tf.Tensor, mean: tf.Tensor) -> tf.Tensor:
        return (tf.reverse(image, [-1]) / 255 - mean) / tf.maximum(std, 1e-3)

    assert of_function(lambda image: tf.identity(normalise(image, tf.constant(MEAN))), std).is_for_bytes
    assert of_function(lambda image: tf.image.convert_image_dtype(tf.cast(image, tf.uint8), tf.float32)).is_for_bytes
    assert not of_function(tf.image.per_image_standardization).is_for_bytes


def test_a_saved_model_is_followed_into_its_functions(tmp_path: Path) -> None:
    image = keras.Input(SHAPE, name="image")
    model = keras.Model(image, layers.Conv2D(2, 3)(layers.Rescaling(1 / 255)(image)))
    model.export(tmp_path / "saved", verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    spec = {"image": tf.TensorSpec([None, *SHAPE], tf.float32, name="image")}
    assert leading_of(ServedFunction(spec, loaded.signatures["serving_default"], [loaded])).is_for_bytes


def test_stablehlo_of_jax_is_followed_with_its_parameters() -> None:
    jax2tf = pytest.importorskip("jax.experimental.jax2tf")
    import jax

    def apply(params: dict[str, Any], image: Any) -> Any:  # noqa: ANN401 - arrays of jax
        prepared = jax.jit(lambda one: (one[..., ::-1] / 255 - np.array(MEAN, np.float32)) / params["std"])(image)
        return jax.nn.relu(prepared.reshape(prepared.shape[0], -1) @ params["kernel"])

    def leading(std: np.ndarray) -> LeadingArithmetic:
        params = {"std": tf.Variable(std), "kernel": tf.Variable(np.zeros((768, 2), np.float32))}
        converted = jax2tf.convert(
            apply, polymorphic_shapes=[None, "(b, ...)"], native_serialization_platforms=("cpu", "tpu")
        )
        spec = {"image": tf.TensorSpec([None, *SHAPE], tf.float32, name="image")}
        return leading_of(ServedFunction(spec, lambda image: {"y": converted(params, image)}, list(params.values())))

    assert leading(np.array(STD, np.float32)).is_for_bytes
    assert not leading(np.array(STD, np.float32) / 255).is_for_bytes
