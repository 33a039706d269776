"""A recommender with its tables in TPUEmbedding, as a tf.Module for training and serving.

Its attributes have the names in the checkpoint: `embedding` and `tower`.
"""

from typing import Any

import tensorflow as tf

from examples.recommender.data import ITEMS, USERS
from tpuserve_exporter.dense_lookup import dense_embedding_lookup

tpu_embedding = tf.tpu.experimental.embedding


def features() -> dict[str, Any]:
    """Return new features by name, two of which share a table. TPUEmbedding stores each model's optimizer in the
    tables.
    """
    users = tpu_embedding.TableConfig(vocabulary_size=USERS, dim=8, combiner="mean", name="users")
    films = tpu_embedding.TableConfig(vocabulary_size=ITEMS, dim=8, combiner="mean", name="films")
    tables = {"user": users, "history": films, "item": films}
    return {name: tpu_embedding.FeatureConfig(table=table, name=name) for name, table in tables.items()}


class Tower(tf.Module):  # type: ignore[misc]  # tensorflow is untyped
    """Activations by feature [rows, 8] → probability of a like [rows]."""

    def __init__(self) -> None:
        super().__init__()
        width = 5 * 8
        kernel = tf.random.stateless_normal([width, 16], seed=(1, 1)) / width**0.5
        self.hidden = tf.Variable(kernel, name="hidden/kernel")
        self.hidden_bias = tf.Variable(tf.zeros([16]), name="hidden/bias")
        self.score = tf.Variable(tf.random.stateless_normal([16, 1], seed=(1, 2)) / 4.0, name="score/kernel")
        self.score_bias = tf.Variable(tf.zeros([1]), name="score/bias")

    def __call__(self, activations: dict[str, Any]) -> Any:  # noqa: ANN401 - tensors
        user, history, item = (activations[name] for name in ("user", "history", "item"))
        features = tf.concat([user, history, item, user * item, history * item], axis=1)
        hidden = tf.nn.relu(features @ self.hidden + self.hidden_bias)
        return tf.sigmoid(hidden @ self.score + self.score_bias)[:, 0]


class Recommender(tf.Module):  # type: ignore[misc]  # tensorflow is untyped
    """Ids → probability. Without an optimizer, TPUEmbeddingForServing contains the tables without their state."""

    def __init__(self, optimizer: Any = None) -> None:  # noqa: ANN401 - an optimizer of TPUEmbedding
        super().__init__()
        self.features = features()
        self.embedding = tpu_embedding.TPUEmbeddingForServing(self.features, optimizer)
        self.embedding.build()
        self.tower = Tower()

    @tf.function(  # type: ignore[untyped-decorator]
        input_signature=[
            tf.TensorSpec([None], tf.int32, name="user"),
            tf.TensorSpec([None, None], tf.int32, name="history"),
            tf.TensorSpec([None], tf.int32, name="item"),
        ]
    )
    def __call__(self, user: Any, history: Any, item: Any) -> dict[str, Any]:  # noqa: ANN401 - tensors
        ids = {"user": user, "history": history, "item": item}
        return {"liked": self.tower(dense_embedding_lookup(ids, self.embedding.embedding_tables, self.features))}


def build() -> Recommender:
    """Build the model for `tpuserve export --model examples.recommender.model:build`."""
    return Recommender()
