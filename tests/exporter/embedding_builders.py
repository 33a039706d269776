"""Modules with TPUEmbedding tables, for the exporter's tests."""

from typing import Any

import tensorflow as tf

from tpuserve_exporter.dense_lookup import dense_embedding_lookup

tpu_embedding = tf.tpu.experimental.embedding


def features(rows: int = 6, dim: int = 4) -> dict[str, Any]:
    """Return the configuration of one table, `words`."""
    table = tpu_embedding.TableConfig(vocabulary_size=rows, dim=dim, combiner="sqrtn", name="words")
    return {"ids": tpu_embedding.FeatureConfig(table=table, name="ids")}


class Pooled(tf.Module):  # type: ignore[misc]  # tensorflow is untyped
    """A module: `ids` [batch, length] → `pooled`, through a Keras layer."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        import keras

        self._features = features(rows, dim)
        self.embedding = tpu_embedding.TPUEmbeddingForServing(self._features, None)
        self.head = keras.layers.Dense(2, name="head")
        self.head.build((None, dim))

    def __call__(self, ids: Any) -> dict[str, Any]:  # noqa: ANN401 - tensors
        found = dense_embedding_lookup({"ids": ids}, self.embedding.embedding_tables, self._features)
        return {"pooled": self.head(found["ids"])}


def pooled(rows: int = 6, dim: int = 4) -> Pooled:
    return Pooled(rows, dim)
