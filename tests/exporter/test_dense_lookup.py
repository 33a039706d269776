"""Tests that padded ids give the same result as sparse ids."""

from typing import Any

import numpy as np
import pytest

from tpuserve_exporter.dense_lookup import dense_embedding_lookup

pytestmark = [pytest.mark.xdist_group(__name__)]

IDS = [[3, 1, 3], [], [7], [0, 2]]
PADDED = np.array([[3, 1, 3, -1], [-1, -1, -1, -1], [7, -1, -1, -1], [0, 2, -1, -1]], np.int32)


def _config(combiner: str = "sum", **options: Any) -> Any:  # noqa: ANN401 - a FeatureConfig
    import tensorflow as tf

    embedding = tf.tpu.experimental.embedding
    table = embedding.TableConfig(vocabulary_size=8, dim=5, combiner=combiner, name="table")
    return embedding.FeatureConfig(table=table, name="ids", **options)


def _tables(config: Any) -> Any:  # noqa: ANN401 - variables by TableConfig
    import tensorflow as tf

    built = tf.tpu.experimental.embedding.TPUEmbeddingForServing({"ids": config}, None)
    built.build()
    tables = built.embedding_tables
    tables[config.table].assign(tf.random.stateless_normal([8, 5], seed=(1, 2)))
    return tables


def _sparse() -> Any:  # noqa: ANN401 - a SparseTensor
    import tensorflow as tf

    return tf.ragged.constant(IDS, dtype=tf.int32).to_sparse()


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_ids_are_combined_as_sparse_ones_are(tensorflow: None, combiner: str) -> None:
    import tensorflow as tf

    config = _config(combiner)
    tables = _tables(config)
    expected = tf.tpu.experimental.embedding.serving_embedding_lookup({"ids": _sparse()}, None, tables, {"ids": config})
    found = dense_embedding_lookup({"ids": tf.constant(PADDED)}, tables, {"ids": config})
    np.testing.assert_allclose(found["ids"], expected["ids"], rtol=1e-6, atol=1e-7)
    assert not np.any(found["ids"][1])


@pytest.mark.parametrize("length", [2, 6])
def test_sequences_have_the_length_they_were_trained_with(tensorflow: None, length: int) -> None:
    import tensorflow as tf

    config = _config(max_sequence_length=length)
    tables = _tables(config)
    expected = tf.tpu.experimental.embedding.serving_embedding_lookup({"ids": _sparse()}, None, tables, {"ids": config})
    found = dense_embedding_lookup({"ids": tf.constant(PADDED)}, tables, {"ids": config})["ids"]
    assert found.shape == (4, length, 5)
    np.testing.assert_array_equal(found, expected["ids"])


def test_one_id_a_row_is_looked_up(tensorflow: None) -> None:
    import tensorflow as tf

    config = _config()
    tables = _tables(config)
    found = dense_embedding_lookup({"ids": tf.constant([2, -1, 5])}, tables, {"ids": config})["ids"]
    table = tables[config.table].numpy()
    np.testing.assert_array_equal(found, [table[2], np.zeros(5), table[5]])


def test_ids_of_another_rank_are_refused(tensorflow: None) -> None:
    import tensorflow as tf

    config = _config()
    with pytest.raises(ValueError, match="rank 3 instead of 1 or 2"):
        dense_embedding_lookup({"ids": tf.zeros([1, 1, 1], tf.int32)}, _tables(config), {"ids": config})
