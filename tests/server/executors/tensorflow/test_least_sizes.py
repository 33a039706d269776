import logging
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.saved_models import save_function
from tpuserve_formats.messages.fields import field_contents
from tpuserve_server.core.terms.errors import InvalidArgument
from tpuserve_server.core.terms.servable import VersionFiles
from tpuserve_server.core.terms.types import ServableId
from tpuserve_server.executors.tensorflow import TensorFlowOptions
from tpuserve_server.executors.tensorflow.executor import TensorFlowExecutor
from tpuserve_server.executors.tensorflow.least_sizes import find_least_sizes
from tpuserve_server.executors.tensorflow.meta_graph import parse_signatures
from tpuserve_server.executors.tensorflow.run_graph import RunGraph

IMAGES = tf.TensorSpec([None, None, None, 3], tf.float32, "x")
OTHERS = tf.TensorSpec([None, None, None, 3], tf.float32, "y")
ROWS = tf.TensorSpec([None, None], tf.float32, "x")
Outputs = Mapping[str, tf.Tensor]


def convolve(x: tf.Tensor, *size: int, stride: int = 1, padding: str = "VALID") -> tf.Tensor:
    return tf.nn.conv2d(x, tf.ones([*size, x.shape[-1], 4]), stride, padding)


def stack(x: tf.Tensor) -> tf.Tensor:
    return convolve(tf.nn.avg_pool2d(convolve(x, 3, 3, stride=2), 2, 2, "VALID"), 3, 2)


# Functions, and their least sizes by the input's name and dimension.
MODELS: Mapping[str, tuple[Callable[..., Outputs], tuple[tf.TensorSpec, ...], Mapping[tuple[str, int], int]]] = {
    "convolution": (lambda x: {"a": convolve(x, 3, 2)}, (IMAGES,), {("x", 1): 3, ("x", 2): 2}),
    "same padding": (lambda x: {"a": convolve(x, 3, 3, padding="SAME")}, (IMAGES,), {}),
    "stack in a function": (
        lambda x: {"a": tf.reduce_mean(tf.function(stack)(x), [1, 2])},
        (IMAGES,),
        {("x", 1): 13, ("x", 2): 9},
    ),
    "depthwise, dilated": (
        lambda x: {"a": tf.nn.depthwise_conv2d(x, tf.ones([3, 2, 3, 1]), [1, 1, 1, 1], "VALID", dilations=[2, 2])},
        (IMAGES,),
        {("x", 1): 5, ("x", 2): 3},
    ),
    "volumes": (
        lambda x: {"a": tf.nn.conv3d(x, tf.ones([2, 3, 4, 1, 1]), [1] * 5, "VALID")},
        (tf.TensorSpec([None, None, None, None, 1], tf.float32, "x"),),
        {("x", 1): 2, ("x", 2): 3, ("x", 3): 4},
    ),
    "two inputs": (
        lambda x, y: {"a": convolve(x, 3, 3), "b": convolve(y, 5, 5)},
        (IMAGES, OTHERS),
        {("x", 1): 3, ("x", 2): 3, ("y", 1): 5, ("y", 2): 5},
    ),
    "largest of a window": (
        lambda x: {"a": tf.nn.max_pool2d(x, [2, 3], 1, "VALID")},
        (IMAGES,),
        {("x", 1): 2, ("x", 2): 3},
    ),
    "beside an average": (
        lambda x: {"a": tf.nn.avg_pool2d(x, 5, 1, "VALID"), "b": convolve(x, 3, 3)},
        (IMAGES,),
        {("x", 1): 3, ("x", 2): 3},
    ),
    "fixed sizes": (
        lambda x: {"a": convolve(x, 3, 3)},
        (tf.TensorSpec([None, 8, 8, 3], tf.float32, "x"),),
        {},
    ),
    "inverse transform": (lambda x: {"a": tf.signal.irfft(tf.complex(x, x))}, (ROWS,), {("x", 1): 2}),
    "inverse transform of one": (lambda x: {"a": tf.signal.irfft(tf.complex(x, x), [1])}, (ROWS,), {}),
    "transform": (lambda x: {"a": tf.signal.rfft(x)}, (ROWS,), {}),
    "transform of a length": (lambda x: {"a": tf.raw_ops.RFFT(input=x, fft_length=[8])}, (ROWS,), {("x", 1): 1}),
    "spectrogram": (
        lambda x: {"a": convolve(tf.abs(tf.signal.stft(x, 255, 128))[..., None], 3, 3)},
        (ROWS,),
        {("x", 1): 511},
    ),
    "image file": (
        lambda x: {"a": tf.io.encode_png(x)},
        (tf.TensorSpec([None, None, 3], tf.uint8, "x"),),
        {("x", 0): 1, ("x", 1): 1},
    ),
}


def parse(path: Path) -> tuple[bytes, RunGraph]:
    [meta_graph] = field_contents(memoryview((path / "saved_model.pb").read_bytes()), 2)
    return bytes(meta_graph), RunGraph.of(bytes(meta_graph))


@pytest.mark.parametrize("name", MODELS)
def test_the_graph_sets_the_least_sizes(tmp_path: Path, name: str) -> None:
    function, specs, expected = MODELS[name]
    meta_graph, graph = parse(save_function(tmp_path / "1", function, *specs))
    found = find_least_sizes(meta_graph, graph, parse_signatures(meta_graph).values())
    assert {one.dimensions: one.size for one in found.get("serving_default", ())} == {
        (dimension,): size for dimension, size in expected.items()
    }


def test_a_dimension_that_is_repeated_for_another_input_may_be_one(tmp_path: Path) -> None:
    path = save_function(tmp_path / "1", lambda x, y: {"a": convolve(x + y, 2, 2)}, IMAGES, OTHERS)
    meta_graph, graph = parse(path)
    found = find_least_sizes(meta_graph, graph, parse_signatures(meta_graph).values())["serving_default"]
    assert {(one.dimensions, one.size) for one in found} == {((("x", axis), ("y", axis)), 2) for axis in (1, 2)}


def test_the_search_stops_after_its_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    meta_graph, graph = parse(save_function(tmp_path / "1", MODELS["convolution"][0], IMAGES))
    ticks = count()
    with caplog.at_level(logging.WARNING):
        found = find_least_sizes(meta_graph, graph, parse_signatures(meta_graph).values(), lambda: next(ticks))
    assert found == {}
    assert "Signature 'serving_default': the search for the least sizes" in caplog.text


def test_a_dimension_of_which_the_graph_accepts_one_size_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def convolve_nine(x: tf.Tensor) -> Outputs:
        return {"a": convolve(tf.ensure_shape(x, [None, 9, 8, 3]), 3, 3)}

    spec = tf.TensorSpec([None, None, 8, 3], tf.float32, "x")
    path = save_function(tmp_path / "1", convolve_nine, spec)
    meta_graph, graph = parse(path)
    with caplog.at_level(logging.WARNING):
        assert find_least_sizes(meta_graph, graph, parse_signatures(meta_graph).values()) == {}
    assert "The least size of dimension 1 of input 'x' is unknown" in caplog.text


def test_a_run_below_a_least_size_is_refused(tmp_path: Path) -> None:
    path = save_function(tmp_path / "1", MODELS["convolution"][0], IMAGES)
    servable = TensorFlowExecutor(TensorFlowOptions()).load(
        ServableId("m", 1), VersionFiles(path, allows_bfloat16=False)
    )
    for shape, dimension, least in (((2, 2, 8, 3), 1, 3), ((2, 8, 1, 3), 2, 2)):
        with pytest.raises(InvalidArgument, match=rf"'x' has shape .*dimension {dimension} must be at least {least}"):
            servable.dispatch("serving_default", {"x": np.ones(shape, np.float32)}, ["a"])
    x = np.ones((2, 3, 2, 3), np.float32)
    np.testing.assert_allclose(
        servable.dispatch("serving_default", {"x": x}, ["a"]).result()["a"], np.full((2, 1, 1, 4), 18.0)
    )
    assert servable.dispatch("serving_default", {"x": x[:0]}, ["a"]).result()["a"].size == 0
    servable.close()
