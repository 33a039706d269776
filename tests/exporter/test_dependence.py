"""Tests that data flow separates batch from row statistics, random numbers from constants, and state from counters."""

from collections.abc import Callable
from typing import Any

import pytest

from tpuserve_exporter.graphs.batch_statistics import RowAxes
from tpuserve_exporter.graphs.dependence import Dependence, find_dependence

pytestmark = [pytest.mark.xdist_group(__name__), pytest.mark.usefixtures("tensorflow")]
Tensor = Any


def _look(call: Callable[[Tensor], Tensor], shape: tuple[int | None, ...] = (None, 6)) -> Dependence:
    """Return the dependence of the result of `call`, wrapped in a second function. Batches have 4 rows."""
    import tensorflow as tf

    inner = tf.function(call, autograph=False)
    traced = tf.function(lambda x: tf.identity(inner(x), "y"), autograph=False).get_concrete_function(
        tf.TensorSpec(shape, tf.float32, name="x")
    )
    return find_dependence(traced.graph.as_graph_def(), ["y:0"], {"x": (4, *(size or 5 for size in shape[1:]))})


def _normalised(x: Tensor, axes: list[int]) -> Tensor:
    import tensorflow as tf

    mean, variance = tf.nn.moments(x, axes, keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-3)


def _by_sums(x: Tensor) -> Tensor:
    import tensorflow as tf

    return x - tf.reduce_sum(x, 0) / tf.cast(tf.shape(x)[0], tf.float32)


def _by_product(x: Tensor) -> Tensor:
    import tensorflow as tf

    return x - tf.ones([1, tf.shape(x)[0]]) @ x / tf.cast(tf.shape(x)[0], tf.float32)


def _transposed(x: Tensor) -> Tensor:
    import tensorflow as tf

    return tf.transpose(_normalised(tf.transpose(x), [1]))


def _reshaped(x: Tensor) -> Tensor:
    import tensorflow as tf

    return tf.reshape(_normalised(tf.reshape(x, [-1, 2]), [0]), [-1, 6])


def _looped(x: Tensor) -> Tensor:
    import tensorflow as tf

    return tf.while_loop(lambda step, _: step < 2, lambda step, x: (step + 1, _normalised(x, [0])), (0, x))[1]


def _of_powers(x: Tensor) -> Tensor:
    """Centre an activation that consists of powers, like a softmax."""
    import tensorflow as tf

    powers = tf.exp(-tf.square(x))
    return powers - tf.reduce_mean(powers, 0)


def _in_a_branch(x: Tensor) -> Tensor:
    import tensorflow as tf

    return tf.cond(tf.reduce_any(x > 9.0), lambda: _normalised(x, [0]), lambda: x)


def _mean_of_mean(x: Tensor) -> Tensor:
    import tensorflow as tf

    return x - tf.reduce_mean(tf.reduce_mean(x, 1))


def _fused(x: Tensor) -> Tensor:
    import tensorflow as tf

    pictures = tf.reshape(x, [-1, 1, 3, 2])
    return tf.reshape(tf.compat.v1.nn.fused_batch_norm(pictures, [1.0, 1.0], [0.0, 0.0])[0], [-1, 6])


@pytest.mark.parametrize(
    "call",
    [
        lambda x: _normalised(x, [0]),
        _by_sums,
        _by_product,
        _transposed,
        _reshaped,
        _looped,
        _of_powers,
        _in_a_branch,
        _mean_of_mean,
        _fused,
    ],
    ids=["moments", "sums", "product", "transposed", "reshaped", "loop", "powers", "branch", "mean of means", "fused"],
)
def test_averages_over_rows_are_found(call: Callable[[Tensor], Tensor]) -> None:
    assert _look(call).statistics


def _fused_over_features(x: Tensor) -> Tensor:
    """Normalise like Keras 2 layers, with rows as channels."""
    import tensorflow as tf

    rows = tf.shape(x)[0]
    norm = tf.compat.v1.nn.fused_batch_norm(
        tf.reshape(x, [1, rows, 6, 1]), tf.ones([rows]), tf.zeros([rows]), data_format="NCHW"
    )
    return tf.reshape(norm[0], [rows, 6])


def _grouped(x: Tensor) -> Tensor:
    import tensorflow as tf

    return tf.reshape(_normalised(tf.reshape(x, [tf.shape(x)[0], 2, 3]), [2]), [-1, 6])


def _attending(x: Tensor) -> Tensor:
    import tensorflow as tf

    steps = tf.reshape(x, [-1, 3, 2])
    return tf.nn.softmax(tf.matmul(steps, steps, transpose_b=True)) @ steps


def _ranked_by_hand(x: Tensor) -> Tensor:
    import tensorflow as tf

    powers = tf.exp(x - tf.reduce_max(x, 0))
    return powers / tf.reduce_sum(powers, 0)


def _weighed_by_all(x: Tensor) -> Tensor:
    import tensorflow as tf

    return tf.nn.softmax(tf.matmul(x, x, transpose_b=True)) @ x


def _of_the_count_alone(x: Tensor) -> Tensor:
    import tensorflow as tf

    return x + tf.reduce_mean(tf.ones_like(x))


def _scaled_by_the_largest(x: Tensor) -> Tensor:
    import tensorflow as tf

    return x / tf.reduce_max(tf.abs(x))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: _normalised(x, [1]),
        lambda x: _normalised(x, [-1]),
        _fused_over_features,
        _grouped,
        _attending,
        _ranked_by_hand,
        _weighed_by_all,
        _of_the_count_alone,
        _scaled_by_the_largest,
    ],
    ids=["layer norm", "from the end", "fused", "groups", "attention", "ranking", "a set", "ones", "the largest"],
)
def test_what_is_no_average_over_rows_is_left_alone(call: Callable[[Tensor], Tensor]) -> None:
    assert _look(call).statistics == ()


def test_an_average_that_goes_into_no_row_is_no_fault() -> None:
    import tensorflow as tf

    assert _look(lambda x: tf.reduce_mean(x)).statistics == ()


def test_a_free_length_is_not_taken_for_rows() -> None:
    assert _look(lambda x: _normalised(x, [1]), (None, None, 3)).statistics == ()
    assert _look(lambda x: _normalised(x, [0, 1]), (None, None, 3)).statistics


def test_a_graph_for_one_number_of_rows_goes_by_convention() -> None:
    import tensorflow as tf

    fixed = tf.constant([[1.0]] * 4)
    assert _look(lambda x: _normalised(x + fixed, [0]), (4, 6)).statistics
    assert _look(lambda x: _normalised(x + fixed, [1]), (4, 6)).statistics == ()


def test_random_numbers_are_found_unless_their_seed_is_fixed() -> None:
    import tensorflow as tf

    generator = tf.random.Generator.from_seed(1)
    seed = tf.Variable([1, 2])
    assert _look(lambda x: x + tf.random.normal([6])).random
    assert _look(lambda x: x + generator.normal([6])).random
    assert _look(lambda x: x + tf.random.stateless_normal([6], seed.assign_add([1, 1]))).random
    assert _look(lambda x: x + tf.random.stateless_normal([6], [1, 2])).random == ()
    assert _look(lambda x: x + generator.normal([6])).assigned == ()


def test_a_state_that_outputs_read_is_told_from_a_counter() -> None:
    import tensorflow as tf

    state = tf.Variable(0.0)

    def count(x: Tensor) -> Tensor:
        state.assign_add(1.0)
        return x * 2.0

    assert _look(lambda x: x + state.assign_add(1.0)).assigned
    found = _look(count)
    assert (found.assigned, bool(found.written)) == ((), True)


def _look_at_jax(call: Callable[[Tensor], Tensor]) -> Dependence:
    jax2tf = pytest.importorskip("jax.experimental.jax2tf")
    return _look(jax2tf.convert(call, polymorphic_shapes=["rows, _"], with_gradient=False))


def test_averages_in_a_program_are_told_from_a_softmax_over_the_rows() -> None:
    jax = pytest.importorskip("jax")

    def centred(x: Tensor) -> Tensor:
        powers = jax.numpy.exp(-x * x)
        return powers - powers.mean(0)

    assert _look_at_jax(centred).statistics
    assert _look_at_jax(lambda x: jax.nn.softmax(x, 0)).statistics == ()
    assert _look_at_jax(lambda x: jax.nn.log_softmax(x, 0)).statistics == ()
    assert _look_at_jax(lambda x: x - jax.nn.logsumexp(x, 0)).statistics == ()


@pytest.fixture
def analysed_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of the graphs whose shapes are inferred. The list grows during the test."""
    from tpuserve_exporter.graphs import dependence

    sizes_bytes: list[int] = []

    def look_at(graph_def: Any, sizes: Any) -> RowAxes:  # noqa: ANN401 - a graph, and sizes by placeholder
        sizes_bytes.append(graph_def.ByteSize())
        return RowAxes(graph_def, sizes)

    monkeypatch.setattr(dependence, "RowAxes", look_at)
    return sizes_bytes


def test_weights_within_functions_are_not_copied_by_the_analysis(analysed_bytes: list[int]) -> None:
    import tensorflow as tf

    weights = tf.random.normal([6, 20000]).numpy()
    assert _look(lambda x: _normalised(x @ tf.constant(weights), [0])).statistics
    assert analysed_bytes[0] < weights.nbytes / 10


def test_weights_within_a_program_are_not_copied_by_the_analysis(analysed_bytes: list[int]) -> None:
    import tensorflow as tf

    weights = tf.random.normal([6, 20000]).numpy()
    assert _look_at_jax(lambda x: x @ weights - (x @ weights).mean(0)).statistics
    assert analysed_bytes[0] < weights.nbytes / 10
