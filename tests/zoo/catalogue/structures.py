"""Operations with structures: sparse and ragged tensors, tables, control flow, random numbers."""

from typing import Final

import tensorflow as tf

from tests.zoo.catalogue.operation import Operation, operation


def _table(x: tf.Tensor) -> tf.Tensor:
    keys = tf.lookup.KeyValueTensorInitializer(["a", "b"], [0, 1], tf.string, tf.int64)
    return tf.lookup.StaticHashTable(keys, -1).lookup(x)


def _loop(x: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * 2), (0, x))[1]


def _array_loop(x: tf.Tensor) -> tf.Tensor:
    return tf.scan(lambda a, b: a + b, x)


def _sparse(i: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    return tf.sparse.SparseTensor(i, v, [4, 3])


STRUCTURES: Final[tuple[Operation, ...]] = (
    operation(
        "sparse_to_dense", lambda i, v: tf.sparse.to_dense(_sparse(i, v), validate_indices=False), i="l T,2=1", v="f T"
    ),
    operation(
        "sparse_matmul",
        lambda i, v: tf.sparse.sparse_dense_matmul(_sparse(i, v), tf.ones([3, 2])),
        i="l T,2=1",
        v="f T",
    ),
    operation("sparse_reduce", lambda i, v: tf.sparse.reduce_sum(_sparse(i, v), 1), i="l T,2=1", v="f T"),
    operation("sparse_reorder", lambda i, v: tf.sparse.reorder(_sparse(i, v)).values, i="l T,2=1", v="f T"),
    operation("sparse_softmax", lambda i, v: tf.sparse.softmax(_sparse(i, v)).values, i="l T,2=1", v="f T"),
    operation(
        "sparse_fill_empty", lambda i, v: tf.sparse.fill_empty_rows(_sparse(i, v), 0.0)[0].values, i="l T,2=1", v="f T"
    ),
    operation("from_dense", lambda x: tf.sparse.from_dense(x).indices, x="f N,C"),
    operation(
        "ragged_to_tensor",
        lambda v, s: tf.RaggedTensor.from_row_splits(v, s, validate=False).to_tensor(),
        v="f T",
        s="l S=0",
        sizes={"T": 0},
    ),
    operation(
        "ragged_sum",
        lambda v, s: tf.reduce_sum(tf.RaggedTensor.from_row_splits(v, s, validate=False), 1),
        v="f T",
        s="l S=0",
        sizes={"T": 0},
    ),
    operation("ragged_range", lambda x: tf.ragged.range(x).values, x="i N=2"),
    operation("ragged_from_tensor", lambda x: tf.RaggedTensor.from_tensor(x, padding=0.0).values, x="f N,T"),
    operation(
        "row_lengths", lambda n: tf.RaggedTensor.from_row_lengths(tf.range(tf.reduce_sum(n)), n).to_tensor(), n="i N=2"
    ),
    operation("table_lookup", _table, x="s N,T"),
    operation("while_loop", _loop, x="f N,C"),
    operation("scan", _array_loop, x="f T,C"),
    operation("map_fn", lambda x: tf.map_fn(lambda one: one * 2, x), x="f N,C"),
    operation("cond", lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x, lambda: -x), x="f N,C"),
    operation(
        "tensor_list",
        lambda x: tf.raw_ops.TensorListStack(
            input_handle=tf.raw_ops.TensorListFromTensor(tensor=x, element_shape=tf.constant(-1)),
            element_shape=tf.constant(-1),
            element_dtype=tf.float32,
        ),
        x="f N,C",
    ),
    operation("random_uniform", lambda x: tf.random.stateless_uniform(tf.shape(x), [1, 2]), x="f N,C"),
    operation("random_categorical", lambda x: tf.random.stateless_categorical(x, 3, [1, 2]), x="f N,C"),
    operation("multinomial", lambda x: tf.random.categorical(x, 2, seed=3), x="f N,C", repeats=False),
    operation("shuffle", lambda x: tf.random.shuffle(x, seed=3), x="f N,C", repeats=False),
    operation("dropout", lambda x: tf.nn.experimental.stateless_dropout(x, 0.5, [1, 2]), x="f N,C"),
)
