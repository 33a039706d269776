"""Models with the names, tensors and results that Triton's examples expect, as SavedModels.

Triton's server has them in docs/examples/model_repository. `simple_sequence` here has the tensors alone: its results
depend on sequences, which the server refuses.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import tensorflow as tf

from tests.support.saved_models import save_function, write_manifest
from tests.triton_examples.catalogue import IMAGE_MODEL, PIXEL_MODEL

Save = Callable[[Path], Path]


def save_models(folder: Path) -> dict[str, Path]:
    """Save every model below `folder`. Return the base paths by name."""
    for name, save in SAVES.items():
        save(folder / name / "1")
    return {name: folder / name for name in SAVES}


def save_simple(path: Path, dtype: tf.DType = tf.int32) -> Path:
    """Save OUTPUT0 = INPUT0 + INPUT1 and OUTPUT1 = INPUT0 - INPUT1, for rows of 16 numbers."""

    def sum_and_difference(first: tf.Tensor, second: tf.Tensor) -> Mapping[str, tf.Tensor]:
        return {"OUTPUT0": first + second, "OUTPUT1": first - second}

    return save_function(path, sum_and_difference, *_specs(dtype, "INPUT0", "INPUT1"))


def save_simple_int8(path: Path) -> Path:
    """Save `simple` for int8."""
    return save_simple(path, tf.int8)


def save_simple_string(path: Path) -> Path:
    """Save `simple` for numbers written as decimal text."""

    def sum_and_difference(first: tf.Tensor, second: tf.Tensor) -> Mapping[str, tf.Tensor]:
        left, right = (tf.strings.to_number(text, tf.int32) for text in (first, second))
        return {"OUTPUT0": tf.as_string(left + right), "OUTPUT1": tf.as_string(left - right)}

    return save_function(path, sum_and_difference, *_specs(tf.string, "INPUT0", "INPUT1"))


def save_identity(path: Path, dtype: tf.DType = tf.string) -> Path:
    """Save OUTPUT0 = INPUT0, for rows of any length."""
    spec = tf.TensorSpec([None, None], dtype, "INPUT0")
    return save_function(path, lambda tensor: {"OUTPUT0": tf.identity(tensor)}, spec)


def save_sequence(path: Path) -> Path:
    """Save OUTPUT = INPUT, for rows of one number."""
    spec = tf.TensorSpec([None, 1], tf.int32, "INPUT")
    return save_function(path, lambda tensor: {"OUTPUT": tf.identity(tensor)}, spec)


def save_densenet(path: Path) -> Path:
    """Save a model with DenseNet's tensors, without a batch dimension. Its result is the sum of each channel."""

    def sums(image: tf.Tensor) -> Mapping[str, tf.Tensor]:
        return {"fc6_1": tf.pad(tf.reduce_sum(image, [1, 2]), [[0, 997]])}

    return save_function(path, sums, tf.TensorSpec([3, 224, 224], tf.float32, "data_0"))


def save_image_labels(path: Path) -> Path:
    """Save a model with labels: encoded images in, four scores out. The image's length modulo 4 has the score 1."""

    def scores(image: tf.Tensor) -> Mapping[str, tf.Tensor]:
        return {"CLASSIFICATION": tf.one_hot(tf.strings.length(image[:, 0]) % 4, 4)}

    save_function(path, scores, tf.TensorSpec([None, 1], tf.string, "IMAGE"))
    return _add_labels(path, "zero", "one", "two", "three")


def save_pixel_labels(path: Path) -> Path:
    """Save a model with labels: RGB images of 8 by 8 pixels in, the mean of each channel out."""

    def means(image: tf.Tensor) -> Mapping[str, tf.Tensor]:
        return {"CHANNELS": tf.reduce_mean(image, [1, 2])}

    save_function(path, means, tf.TensorSpec([None, 8, 8, 3], tf.float32, "IMAGE"))
    return _add_labels(path, "red", "green", "blue")


def _add_labels(path: Path, *names: str) -> Path:
    labels = path / "assets.extra" / "labels.txt"
    labels.parent.mkdir()
    labels.write_text("\n".join(names))
    write_manifest(path, labels="assets.extra/labels.txt")
    return path


def _specs(dtype: tf.DType, *names: str) -> list[tf.TensorSpec]:
    return [tf.TensorSpec([None, 16], dtype, name) for name in names]


SAVES: Mapping[str, Save] = {
    "simple": save_simple,
    "simple_int8": save_simple_int8,
    "simple_string": save_simple_string,
    "simple_identity": save_identity,
    "simple_sequence": save_sequence,
    "simple_dyna_sequence": save_sequence,
    "densenet_onnx": save_densenet,
    IMAGE_MODEL: save_image_labels,
    PIXEL_MODEL: save_pixel_labels,
    "custom_identity_int32": lambda path: save_identity(path, tf.int32),
}
