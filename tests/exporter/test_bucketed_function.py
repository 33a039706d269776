"""Tests for a function of any number of rows that consists of functions of fixed sizes."""

import numpy as np
import pytest

from tpuserve_exporter.models.bucketed_function import BucketedFunction, TensorFunction

pytestmark = [pytest.mark.xdist_group(__name__), pytest.mark.usefixtures("tensorflow")]


def _of_size(size: int) -> TensorFunction:
    """Return a function that sums each row, for exactly `size` rows, and returns its size."""
    import tensorflow as tf

    def call(x: tf.Tensor, scale: tf.Tensor) -> dict[str, tf.Tensor]:
        assert x.shape[0] == size
        return {"sums": tf.reduce_sum(x, axis=1) * scale, "size": tf.constant([size, 0, 0])}

    return call


@pytest.fixture(scope="module")
def bucketed(tensorflow: None) -> TensorFunction:
    import tensorflow as tf

    function = BucketedFunction({8: _of_size(8), 2: _of_size(2)}, ("x",))
    specs = {"x": tf.TensorSpec([None, 3], name="x"), "scale": tf.TensorSpec([], name="scale")}
    traced: TensorFunction = tf.function(function, autograph=False).get_concrete_function(**specs)
    return traced


@pytest.mark.parametrize(("rows", "size"), [(1, 2), (2, 2), (3, 8), (8, 8)])
def test_rows_are_padded_to_the_next_size_and_cut_again(bucketed: TensorFunction, rows: int, size: int) -> None:
    import tensorflow as tf

    x = np.random.default_rng(rows).random((rows, 3)).astype(np.float32)
    outputs = bucketed(x=tf.constant(x), scale=tf.constant(2.0))
    np.testing.assert_allclose(outputs["sums"].numpy(), 2 * x.sum(axis=1), rtol=1e-6)
    assert outputs["size"].numpy().tolist() == [size, 0, 0]


@pytest.mark.parametrize(("rows", "message"), [(0, "there are no rows"), (9, "at most 8 rows fit into one batch")])
def test_other_numbers_of_rows_are_refused(bucketed: TensorFunction, rows: int, message: str) -> None:
    import tensorflow as tf

    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        bucketed(x=tf.zeros((rows, 3)), scale=tf.constant(1.0))


def test_inputs_must_agree_on_their_rows(tensorflow: None) -> None:
    import tensorflow as tf

    function = BucketedFunction({2: lambda a, b: {"sum": a + b}}, ("a", "b"))
    traced = tf.function(function, autograph=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match="inputs differ in their rows"):
        traced(a=tf.zeros([1]), b=tf.zeros([2]))
