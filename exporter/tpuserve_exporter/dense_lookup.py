"""Lookup in TPUEmbedding tables for ids in dense arrays, which a server can batch and a TPU can compile.

`tf.tpu.experimental.embedding.serving_embedding_lookup` takes sparse and ragged tensors, which signatures here cannot
have. Its operations, SparseReshape among them, have no TPU kernel. Dense padded ids give the same numbers.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf


def dense_embedding_lookup(
    features: "Mapping[str, tf.Tensor]", tables: Mapping[Any, "tf.Variable"], feature_config: Mapping[str, Any]
) -> "dict[str, tf.Tensor]":
    """Return activations by feature for integer ids, as `serving_embedding_lookup` does.

    Ids of shape [rows] give [rows, dim]. Ids of shape [rows, length] give [rows, dim]: the table's combiner (`sum`,
    `mean` or `sqrtn`) combines them. If the feature has a sequence length, they give [rows, max_sequence_length, dim].
    Negative ids are padding; a row of only padding gives zeros. `tables` are `embedding.embedding_tables`.

    Raises:
        KeyError: if a feature has no configuration.
        ValueError: if a combiner is unknown or the ids have another rank.
    """
    return {
        name: _look_up(ids, tables[feature_config[name].table], feature_config[name]) for name, ids in features.items()
    }


def _look_up(ids: "tf.Tensor", table: "tf.Variable", feature: Any) -> "tf.Tensor":  # noqa: ANN401 - a FeatureConfig
    import tensorflow as tf

    if ids.shape.rank == 1:
        return _gather(ids[:, tf.newaxis], table)[0][:, 0]
    if ids.shape.rank != 2:
        raise ValueError(f"ids of {feature.name or feature.table.name} have rank {ids.shape.rank} instead of 1 or 2")
    if feature.max_sequence_length > 0:
        return _sequence(ids, table, feature.max_sequence_length)
    vectors, present = _gather(ids, table)
    return _combine(tf.reduce_sum(vectors, axis=1), tf.reduce_sum(present, axis=1), feature.table.combiner)


def _gather(ids: "tf.Tensor", table: "tf.Variable") -> "tuple[tf.Tensor, tf.Tensor]":
    """Return vectors [rows, length, dim], zero for padding, and a mask [rows, length, 1] that is zero for padding."""
    import tensorflow as tf

    present = tf.cast(ids >= 0, table.dtype)[..., tf.newaxis]
    return tf.gather(table, tf.maximum(ids, 0)) * present, present


def _sequence(ids: "tf.Tensor", table: "tf.Variable", length: int) -> "tf.Tensor":
    """Look up ids cut or padded to `length`, the length that the model was trained with. Padding gives zeros."""
    import tensorflow as tf

    ids = ids[:, :length]
    filled = tf.pad(ids, [[0, 0], [0, length - tf.shape(ids)[1]]], constant_values=-1)
    return _gather(tf.ensure_shape(filled, [None, length]), table)[0]


def _combine(total: "tf.Tensor", count: "tf.Tensor", combiner: str) -> "tf.Tensor":
    import tensorflow as tf

    if combiner == "sum":
        return total
    if combiner == "mean":
        return tf.math.divide_no_nan(total, count)
    if combiner == "sqrtn":
        return tf.math.divide_no_nan(total, tf.sqrt(count))
    raise ValueError(f"there is no combiner {combiner!r}")
