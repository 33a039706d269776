"""A recommender with two embedding tables, in the form that training with TPUEmbedding saves."""

from pathlib import Path

import numpy as np

from examples.example import Array, Example, Tensors


def train(folder: Path) -> Path:
    from examples.recommender.train import train

    return train(folder / "checkpoints")


def requests() -> list[dict[str, Array]]:
    """Return one user without a history, 21 with histories of up to eight films, and five with at most three films."""
    from examples.recommender.data import PADDING, load

    views = load(rows=21, seed=2)
    short = np.where(np.arange(3) < 2, views.history[:5, :3], PADDING).astype(np.int32)
    return [
        {"user": views.user[:1], "history": np.full((1, 1), PADDING, np.int32), "item": views.item[:1]},
        {"user": views.user, "history": views.history, "item": views.item},
        {"user": views.user[:5], "history": short, "item": views.item[:5]},
    ]


def answer(source: Path, request: Tensors) -> Tensors:
    """Predict with TensorFlow's own lookup of sparse ids."""
    import tensorflow as tf

    from examples.recommender.model import Recommender, tpu_embedding

    model = Recommender()
    restored = tf.train.Checkpoint(embedding=model.embedding, tower=model.tower)
    restored.restore(tf.train.latest_checkpoint(source)).expect_partial()
    ids = {name: tf.sparse.from_dense(value + 1) for name, value in request.items() if value.ndim == 2}
    sparse = {name: tf.sparse.map_values(tf.subtract, value, 1) for name, value in ids.items()}
    sparse |= {name: tf.constant(value) for name, value in request.items() if value.ndim == 1}
    tables = model.embedding.embedding_tables
    return {"liked": model.tower(tpu_embedding.serving_embedding_lookup(sparse, None, tables, model.features)).numpy()}


EXAMPLE = Example(
    name="recommender",
    source="TPUEmbedding checkpoint",
    train=train,
    requests=requests,
    answer=answer,
    export_options=(
        *("--model", "examples.recommender.model:build"),
        *("--sequence-buckets", "4,8", "--pad-value", "history=-1"),
    ),
)
