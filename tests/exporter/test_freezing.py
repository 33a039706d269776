"""Tests for --freeze on graphs: equal outputs, and the expected nodes folded, computed and dropped."""

from collections import Counter
from typing import Any

import keras
import numpy as np
import pytest

from tests.exporter import freezable
from tpuserve_exporter.errors import CannotLower
from tpuserve_exporter.graphs.freeze import Frozen, freeze
from tpuserve_exporter.models.keras_serving import serve_keras
from tpuserve_exporter.models.served_function import ServedFunction
from tpuserve_exporter.options.export_options import ModelOptions

pytestmark = pytest.mark.usefixtures("tensorflow")
IMAGES = np.random.default_rng(2).random((5, 8, 8, 3), np.float32)


def difference(before: ServedFunction, frozen: Frozen, **inputs: Any) -> float:  # noqa: ANN401 - arrays
    expected = before.trace()[0](**inputs)
    actual = frozen.function.trace()[0](**inputs)
    assert actual.keys() == expected.keys()
    return max(float(np.max(np.abs(expected[name] - actual[name]))) for name in expected)


def operations(function: ServedFunction) -> Counter[str]:
    graph = function.trace()[1].graph.as_graph_def()
    return Counter(node.op for part in graph.library.function for node in part.node_def)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("mixed_bfloat16", 2e-2)])
def test_batch_norms_go_into_every_kind_of_kernel(dtype: str, tolerance: float) -> None:
    function = serve_keras(freezable.convolutions(dtype), ModelOptions())
    frozen = freeze(function)
    assert frozen.folded == 6
    assert difference(function, frozen, image=IMAGES) < tolerance
    left = operations(frozen.function)
    assert left["Mul"] == 1, "the batch norm behind a relu stays"
    assert not left["Rsqrt"], "what it scales by is computed"


def test_kernels_in_bfloat16_are_written_in_bfloat16() -> None:
    frozen = freeze(serve_keras(freezable.convolutions("mixed_bfloat16"), ModelOptions()))
    kernels = [one for one in frozen.function.trackables if "kernel" in one.name and "shift" not in one.name]
    assert kernels
    assert {one.dtype.name for one in kernels} == {"bfloat16"}


def test_a_fused_batch_norm_is_folded() -> None:
    """Fold the batch norm of TensorFlow 1 and Keras 2 graphs, also with channels first."""
    import tensorflow as tf

    random = np.random.default_rng(3)
    kernel = tf.Variable(random.normal(size=(3, 3, 2, 4)).astype(np.float32), name="kernel")
    norm = tf.Variable(random.uniform(0.5, 1.5, (4, 4)).astype(np.float32), name="norm")

    def call(x: Any) -> Any:  # noqa: ANN401 - a tensor
        value = tf.nn.conv2d(x, kernel, 1, "SAME")
        return tf.compat.v1.nn.fused_batch_norm(value, *tf.unstack(norm), epsilon=0.01, is_training=False)[0]

    function = freezable.function([None, 6, 6, 2], call, kernel, norm)
    frozen = freeze(function)
    assert frozen.folded == 1
    assert not operations(frozen.function)["FusedBatchNormV3"]
    assert difference(function, frozen, x=random.random((2, 6, 6, 2), np.float32)) < 1e-5


def test_scales_that_are_not_of_channels_stay() -> None:
    """Keep scales of rows, of a wider shape, and of values with two uses."""
    import tensorflow as tf

    kernel = tf.Variable(np.ones((3, 1), np.float32), name="kernel")
    wide = tf.Variable(np.arange(1, 5, dtype=np.float32), name="wide")

    def call(x: Any) -> Any:  # noqa: ANN401 - a tensor
        product = x @ kernel
        return product * wide + tf.reduce_sum(x @ tf.tile(kernel, [1, 2])) * wide[0]

    function = freezable.function([None, 3], call, kernel, wide)
    frozen = freeze(function)
    assert frozen.folded == 0
    assert difference(function, frozen, x=np.ones((2, 3), np.float32)) == 0


def test_arithmetic_on_both_sides_of_a_product_is_one_shift() -> None:
    import tensorflow as tf

    kernel = tf.Variable(np.random.default_rng(4).normal(size=(2, 3)).astype(np.float32), name="kernel")
    by = tf.Variable([1.0, 2.0, 4.0], name="by")
    function = freezable.function(
        [None, 3], lambda x: 5.0 - (tf.matmul(x, kernel, transpose_b=True) - 1.0) / by[1:], kernel, by
    )
    frozen = freeze(function)
    assert frozen.folded == 1
    left = operations(frozen.function)
    assert (left["MatMul"], left["BiasAdd"], left["Sub"], left["RealDiv"]) == (1, 1, 0, 0)
    assert difference(function, frozen, x=np.ones((4, 3), np.float32)) < 1e-6


def test_large_values_do_not_grow() -> None:
    """Keep int8 weights as int8: each request casts a large weight."""
    import tensorflow as tf

    small = tf.Variable(np.ones((2, 3), np.int8), name="small")
    large = tf.Variable(np.ones((3, 1 << 15), np.int8), name="large")
    function = freezable.function(
        [None, 2], lambda x: x @ tf.cast(small, tf.float32) @ tf.cast(large, tf.float32), small, large
    )
    frozen = freeze(function)
    assert {(one.shape.num_elements(), one.dtype.name) for one in frozen.function.trackables} == {
        (6, "float32"), (3 << 15, "int8"),
    }  # fmt: skip
    assert difference(function, frozen, x=np.ones((4, 2), np.float32)) == 0


def test_what_is_of_training_goes_from_functions_within_functions() -> None:
    import tensorflow as tf

    module = freezable.guarded()
    function = ServedFunction({"x": tf.TensorSpec([None, 3], tf.float32, name="x")}, module.__call__, [module])
    frozen = freeze(function)
    assert frozen.folded == 1
    assert {"Assert", "PrintV2", "CheckNumerics"} <= frozen.dropped.keys()
    left = operations(frozen.function)
    assert not left.keys() & {"Assert", "PrintV2", "CheckNumerics", "CheckNumericsV2", "StopGradient", "Mul"}
    assert difference(function, frozen, x=np.ones((4, 3), np.float32)) == 0


def test_loops_tables_and_embeddings_are_kept() -> None:
    import tensorflow as tf

    layers = keras.layers
    ids = keras.Input((4,), name="ids", dtype="int32")
    value = layers.LSTM(3)(layers.Embedding(5, 2)(ids))
    model = freezable.settle(keras.Model(ids, layers.BatchNormalization(name="scores")(layers.Dense(2)(value))))
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant(["a", "b"]), tf.constant([1, 2])), 0
    )

    def call(words: Any) -> Any:  # noqa: ANN401 - a tensor
        return {"scores": model(table.lookup(words), training=False)}

    function = ServedFunction({"words": tf.TensorSpec([None, 4], tf.string, name="words")}, call, [model, table])
    frozen = freeze(function)
    assert frozen.folded == 1
    assert any(one is table for one in frozen.function.trackables)
    assert difference(function, frozen, words=tf.constant([["a", "b", "c", "a"]] * 2)) < 1e-6


def test_a_graph_that_changes_its_variables_is_refused() -> None:
    function = serve_keras(freezable.counting(), ModelOptions())
    with pytest.raises(CannotLower, match=r"changes variables.*\(Assign\w+\).*training=False"):
        freeze(function)


def test_a_graph_that_writes_to_a_table_is_refused() -> None:
    import tensorflow as tf

    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)

    def call(ids: Any) -> Any:  # noqa: ANN401 - a tensor
        table.insert(ids, ids)
        return {"seen": table.lookup(ids)}

    function = ServedFunction({"ids": tf.TensorSpec([None], tf.int64, name="ids")}, call, [table])
    with pytest.raises(CannotLower, match=r"changes variables.*\(LookupTableInsertV2\)"):
        freeze(function)


def test_a_program_of_a_compiler_is_refused() -> None:
    jax2tf = pytest.importorskip("jax.experimental.jax2tf")
    function = freezable.function([None, 3], jax2tf.convert(lambda x: x * 2, polymorphic_shapes=["(b, 3)"]))
    with pytest.raises(CannotLower, match=r"StableHLO.*Omit --freeze"):
        freeze(function)
