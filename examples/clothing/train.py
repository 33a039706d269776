"""Train the clothing classifier with a moving average of its weights, and save checkpoints during the run.

    python examples/clothing/train.py --out .demo/clothing
    tpuserve export .demo/clothing .demo/models/clothing --model examples.clothing.model:build

The checkpoint contains the trained weights and, in the optimizer, their average (`use_ema`). The export uses the
average, unless you pass `--weights raw`.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

if TYPE_CHECKING:
    import keras

BATCH = 64


def compile_model(seed: int) -> "keras.Model":
    """Return the model with its optimizer, which keeps the average."""
    import keras

    from examples.clothing.model import build

    keras.utils.set_random_seed(seed)
    model = build()
    optimizer = keras.optimizers.Adam(3e-3, use_ema=True, ema_momentum=0.9)
    optimizer.build(model.trainable_variables)
    model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def train(out: Path, epochs: int, seed: int) -> float:
    """Save checkpoints in `out`. Return the accuracy of the trained weights on held-out images."""
    import keras
    import tensorflow as tf

    from examples.clothing import data

    training, held_out = data.make(1024, seed), data.make(256, seed + 1)
    model = compile_model(seed)
    step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer, step=step)
    manager = tf.train.CheckpointManager(checkpoint, str(out), max_to_keep=2)

    def end_epoch(epoch: int, logs: dict[str, float]) -> None:
        step.assign(int(model.optimizer.iterations))
        path = manager.save(checkpoint_number=int(step))
        print(f"epoch {epoch + 1}/{epochs}  accuracy {logs['accuracy']:.4f}  {Path(path).name}", flush=True)

    # Save after each epoch, because Keras replaces the weights by the average at the end of the run.
    callback = keras.callbacks.LambdaCallback(on_epoch_end=end_epoch)
    model.fit(training.images, training.labels, batch_size=BATCH, epochs=epochs, verbose=0, callbacks=[callback])
    accuracy = float(model.evaluate(held_out.images, held_out.labels, verbose=0)[1])
    print(f"accuracy on {len(held_out.labels)} held-out images: {accuracy:.4f}")
    return accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="Directory for the checkpoints. Created if missing.")
    parser.add_argument("--epochs", type=int, default=4, help="Number of epochs (default: 4).")
    parser.add_argument("--seed", type=int, default=1, help="Seed of data, weights and shuffling (default: 1).")
    options = parser.parse_args()
    train(options.out, options.epochs, options.seed)


if __name__ == "__main__":
    main()
