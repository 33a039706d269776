"""Train the recommender, and save a checkpoint like TPUEmbedding's: tables with their state, tower and step.

    python examples/recommender/train.py --out .demo/recommender
    tpuserve export .demo/recommender .demo/models/recommender --model examples.recommender.model:build \\
        --sequence-buckets 4,8 --pad-value history=-1

On a TPU, its memory holds the tables, and `embedding.enqueue`, `dequeue` and `apply_gradients` replace the table reads
and the explicit Adagrad of this file. The objects, their names, and therefore the checkpoint, are the same.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

if TYPE_CHECKING:
    from examples.recommender.model import Recommender

EPOCHS = 3
BATCH = 200
LEARNING_RATE, ACCUMULATOR = 0.1, 1e-6


def train(out: Path, epochs: int = EPOCHS) -> Path:
    """Train, and return the directory of checkpoints, `out`."""
    import tensorflow as tf

    from examples.recommender.data import load
    from examples.recommender.model import Recommender, tpu_embedding

    model, step = (
        Recommender(tpu_embedding.Adagrad(LEARNING_RATE, ACCUMULATOR)),
        tf.Variable(0, dtype=tf.int64, name="step"),
    )
    accumulated = [tf.Variable(tf.fill(one.shape, ACCUMULATOR)) for one in model.tower.trainable_variables]
    take_step = tf.function(_take_step)
    views = load()
    for epoch in range(epochs):
        for start in range(0, len(views.user), BATCH):
            rows = slice(start, start + BATCH)
            ids = [tf.constant(one[rows]) for one in (views.user, views.history, views.item)]
            loss = take_step(model, accumulated, ids, tf.constant(views.liked[rows]))
            step.assign_add(1)
        print(f"epoch {epoch + 1}: loss {float(loss):.3f}")
    checkpoint = tf.train.Checkpoint(embedding=model.embedding, tower=model.tower, step=step)
    tf.train.CheckpointManager(checkpoint, str(out), max_to_keep=1).save(checkpoint_number=int(step))
    return out


def _take_step(model: "Recommender", accumulated: list[Any], ids: list[Any], liked: Any) -> Any:  # noqa: ANN401 - tensors
    """Apply Adagrad to the tables, whose state TPUEmbedding keeps, and to the tower. Return the previous loss."""
    import tensorflow as tf

    states = list(model.embedding.variables.values())
    variables = [state["parameters"] for state in states] + list(model.tower.trainable_variables)
    sums = [state["accumulators"] for state in states] + accumulated
    with tf.GradientTape() as tape:
        found = model(*ids)["liked"]
        loss = tf.reduce_mean(tf.keras.losses.binary_crossentropy(liked, found))
    for variable, total, gradient in zip(variables, sums, tape.gradient(loss, variables), strict=True):
        slope = tf.convert_to_tensor(gradient)
        total.assign_add(slope**2)
        variable.assign_sub(LEARNING_RATE * slope / tf.sqrt(total))
    return loss


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="Directory for the checkpoints.")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="Number of epochs (default: %(default)s).")
    arguments = parser.parse_args()
    print(train(arguments.out, arguments.epochs))
